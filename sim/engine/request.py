"""A request and where it stands.

Invariant: what a decoding request has computed is not stored but follows from the pass. Its context after pass `s`,
the token fed in it included, is `s - epoch`; `last_pass` is the pass that samples its last token.
"""

from enum import Enum
from math import nan

from sim.engine.prefix_cache import KeyedBlocks


class RequestStatus(Enum):
    """WAITING and PREEMPTED are in the queue; ENDED ones hold their seat until their last token has come back."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    ENDED = "ended"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class Request:
    """`index` is the row in the trace, `serial` the order of admission; `max_tokens` is capped by max_model_len.

    `num_computed_tokens` is kept while prefilling only, `num_sampled_tokens` while not decoding; passes are numbered
    from 0 and -1 stands for none yet. `resumes_at` is what a preempted request counts as computed without having blocks
    for it; `wasted_pass` the pass in which it ran once more though its last token was in flight, `passed_over_pass` the one
    in which the scan passed it over.
    """

    keyed: KeyedBlocks | None = None
    num_shared_blocks: int = 0
    status: RequestStatus = RequestStatus.WAITING
    serial: int = 0
    num_computed_tokens: int = 0
    num_sampled_tokens: int = 0
    epoch: int = 0
    last_pass: int = -1
    first_decode_pass: int = -1
    stretch_pass: int = -1
    starved_pass: int = -1
    sampled_pass: int = -1
    chunk_pass: int = -1
    num_chunk_tokens: int = 0
    resumes_at: int = 0
    wasted_pass: int = -1
    passed_over_pass: int = -1
    num_preemptions: int = 0
    num_cached_tokens: int = 0
    first_scheduled_s: float = nan
    first_token_s: float = nan
    passed_blocks: list[int] | None = None

    def __init__(
        self,
        index: int,
        request_id: str,
        arrival_s: float,
        num_prompt_tokens: int,
        max_tokens: int,
        priority: int = 0,
    ) -> None:  # not a dataclass's, which mypyc leaves interpreted
        self.index = index
        self.request_id = request_id
        self.arrival_s = arrival_s
        self.num_prompt_tokens = num_prompt_tokens
        self.max_tokens = max_tokens
        self.priority = priority

    @property
    def num_tokens(self) -> int:
        """The prompt and all that has been sampled, also what is still on its way; not while decoding."""
        return self.num_prompt_tokens + self.num_sampled_tokens


def admission_order(request: Request) -> int:
    """What sorts requests as they were admitted."""
    return request.serial
