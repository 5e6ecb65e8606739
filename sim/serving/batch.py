"""What one scheduling pass decides."""

from typing import NamedTuple

from sim.serving.request import Request
from sim.steptime.protocol import StepShape


class Chunk(NamedTuple):
    """Prompt tokens of one request in a step: on top of those computed before, and whether a token comes of it."""

    request: Request
    num_tokens: int
    num_computed_before: int
    num_new_blocks: int
    samples: bool


class Batch:
    """The builder and the outcome of pass number `step`: decodes as counts, chunks one by one."""

    __slots__ = (
        "admitted",
        "budget",
        "chunks",
        "hits",
        "longest_chunk",
        "num_decodes",
        "num_tokens",
        "preempted",
        "shape",
        "starved",
        "step",
    )

    def __init__(self, step: int, budget: int, longest_chunk: int) -> None:
        self.step = step
        self.budget = budget
        self.longest_chunk = longest_chunk
        self.num_decodes = 0
        self.num_tokens = 0
        self.chunks: list[Chunk] = []
        self.preempted: list[Request] = []
        self.starved: list[Request] = []
        self.admitted: list[Request] = []
        self.hits: dict[str, int] = {}
        self.shape: StepShape | None = None

    @property
    def did_nothing(self) -> bool:
        return not (self.num_decodes or self.chunks or self.preempted)

    def close(self, decode_context_tokens: int) -> None:
        """Set `shape`, the step's work in plain numbers, if there is any. A chunk of one token counts as a decode."""
        self.num_tokens = self.num_decodes
        if not self.chunks:
            if self.num_decodes:
                self.shape = StepShape(self.num_decodes, decode_context_tokens, (), self.num_decodes)
            return
        num_decodes = num_sampled = self.num_decodes
        chunks = []
        for chunk in self.chunks:
            num_sampled += chunk.samples
            self.num_tokens += chunk.num_tokens
            if chunk.num_tokens > 1:
                chunks.append((chunk.num_tokens, chunk.num_computed_before))
            else:
                num_decodes += 1
                decode_context_tokens += chunk.num_computed_before + 1
        self.shape = StepShape(num_decodes, decode_context_tokens, tuple(chunks), num_sampled)
