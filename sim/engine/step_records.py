"""The steps of an engine, in columns."""

from dataclasses import dataclass

from sim.engine.columns import Floats, Ints


@dataclass(frozen=True)
class StepRecords:
    """One entry a step that ran tokens, in order of launch."""

    start_s: Floats
    end_s: Floats
    num_decodes: Ints  # requests with one scheduled token, or one and drafts behind it
    decode_context_tokens: Ints  # sum of their contexts after the step, as far as they are read from memory
    num_chunk_tokens: Ints  # tokens of all others
    num_chunks: Ints  # how many others there are
    num_sampled: Ints  # requests that get a token of the step
    num_running: Ints  # after scheduling
    num_waiting: Ints
    num_free_blocks: Ints
    num_preempted: Ints  # since the step before
    chunk_tokens: Ints  # of each chunk, step after step
    chunk_computed_tokens: Ints  # computed before each chunk
    num_drafts: Ints  # of the decodes
    num_accepted: Ints  # of these drafts

    def __len__(self) -> int:
        return len(self.start_s)

    @property
    def num_tokens(self) -> Ints:
        """Of all kinds."""
        return self.num_decodes + self.num_drafts + self.num_chunk_tokens
