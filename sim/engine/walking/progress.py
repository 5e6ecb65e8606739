"""How far a request has come, in counters that every pass moves on."""

from sim.engine.request import Request
from sim.engine.walking.chunks import Chunks
from sim.engine.walking.stored_chunks import StoredChunks


class Progress:
    """What vLLM's Request holds, of a request that this engine serves.

    `num_tokens` are known: the prompt and what has come back. `num_computed` positions have been scheduled, and run ahead of
    the device; `num_placeholders` of them are for tokens on their way (async scheduling only), drafts included.
    `num_drafts` may be verified in the next pass. `num_in_flight` tokens of it are on the device, of which `num_stale` were when it was
    preempted; `num_samples_in_flight` batches there sample for it. It holds `num_blocks` of each KV group, room for `num_slots`
    tokens, of which the first `num_full` can be found; the next one cannot be full before `next_full` tokens. `attempt` counts its preemptions. `last_batch` is the number of the batch that its last token came with, `sampled_number` that of the last to sample for it, where a Rotation numbers them at launch. While `counted_call` is not -1 it is a Rotation that knows how far it has come. The trace knows the contents of `num_trace_blocks`. `chunks` is set where there
    is a CPU tier, `stored` where there is a store. It `is_prefilling` from a load, or a chunk that is not the last, until the last one is scheduled.
    """

    num_computed: int = 0
    num_placeholders: int = 0
    num_drafts: int = 0
    num_in_flight: int = 0
    num_samples_in_flight: int = 0
    num_stale: int = 0
    num_blocks: int = 0
    num_slots: int = 0
    num_full: int = 0
    next_full: int = 0
    num_verifications: int = 0
    num_proposals: int = 0
    attempt: int = 0
    granted_call: int = -1
    counted_call: int = -1
    eligible_call: int = 0
    is_running: bool = False
    is_finished: bool = False
    is_loading: bool = False
    is_prefilling: bool = False
    had_to_wait: bool = False
    num_loaded: int = 0
    num_blank_at_release: int = 0
    last_batch: int = -2
    sampled_number: int = -2
    sampled_s: float = -1.0
    chunks: Chunks
    stored: StoredChunks

    def __init__(self, request: Request, accepted: bytes, proposed: bytes) -> None:
        self.request = request
        self.num_prompt = request.num_prompt_tokens
        self.num_tokens = request.num_prompt_tokens
        self.last_token = request.num_prompt_tokens + request.max_tokens
        self.num_trace_blocks = request.num_shared_blocks
        self.accepted = accepted
        self.proposed = proposed


def admission_order(progress: Progress) -> int:
    """Sort key: the order of admission."""
    return progress.request.serial
