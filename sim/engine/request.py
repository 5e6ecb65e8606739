"""A request and its progress.

Invariant: the progress of a decoding request is not stored but follows from the number of the pass. After pass `s` its
context is `s - epoch` tokens, the token fed in that pass included; `last_pass` is the pass that samples its last token.
"""

from enum import Enum
from math import nan

from sim.engine.keyed_blocks import KeyedBlocks


class RequestStatus(Enum):
    """WAITING and PREEMPTED requests are in the queue, SWAPPED ones in one of their own. An ENDED one has its last token in flight; it keeps its place among
    the running requests, and its blocks, until that token has come back, which makes it FINISHED.
    """

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    ENDED = "ended"
    PREEMPTED = "preempted"
    SWAPPED = "swapped"
    FINISHED = "finished"


class HeldStates:
    """The blocks in which a request has states, of each group of layers that keep some: their `numbers`, in order, of the `end` that its table has.

    `before` was the last one before the latest were taken, -1 where there was none. The pass writes a state behind `checkpoint_place` blocks into block number `checkpoint` as well,
    unless that is -1. A block that can be found as another than its number says is in `contents`.
    """

    def __init__(self, num_hit: int) -> None:
        self.numbers = [num_hit - 1] if num_hit else []
        self.end = num_hit
        self.before = -1
        self.checkpoint = -1
        self.checkpoint_place = 0
        self.contents: dict[int, int] = {}

    def add(self, count: int) -> None:
        """The next blocks of the table, so many, are held."""
        self.numbers += range(self.end, self.end + count)
        self.end += count


class Request:
    """A request as the scheduler sees it. Passes are numbered from 0; -1 means that there was none yet.

    - `index` is the row in the trace, `serial` the number of its last admission; `max_tokens` is capped by max_model_len.
    - `lora` is the number of its adapter, 0 for the base model; `client` that of who sent it, where a policy asks.
    - `num_computed_tokens` is kept only while prefilling, `num_sampled_tokens` only while not decoding.
    - `stretch_pass` is the first pass since which it has decoded without a break, `starved_pass` the last one in which it
      was decoding and got nothing.
    - `sampled_pass` is the last pass that sampled a token of it, kept where it cannot be computed from the others.
    - `chunk_pass` is the last pass with a chunk of its prompt, which had `num_chunk_tokens` tokens.
    - `resumes_at` tokens count as computed when a preempted request resumes, though it has no blocks for them;
      `wasted_pass` is the pass in which it ran once more with its last token in flight, `passed_over_pass` the one in
      which the scan passed it over. All three happen in older versions of vLLM only.
    - `keyed` are its leading blocks with a content key, `num_shared_blocks` how many of them other requests may ask for,
      `passed_blocks` how many blocks its attention windows have given back, by KV group; `states` are those of layers that keep some.
    - others have had its first `junction` tokens, where prompts part; 0 where that is not known.
    - `first_token_s` is known once the batch that brings it is launched or back; it is `noted_in` a list then, where somebody keeps one.
    """

    client: int = 0
    keyed: KeyedBlocks | None = None
    num_shared_blocks: int = 0
    junction: int = 0
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
    noted_in: "list[Request] | None" = None
    passed_blocks: list[int] | None = None
    states: HeldStates | None = None

    def __init__(
        self,
        index: int,
        request_id: str,
        arrival_s: float,
        num_prompt_tokens: int,
        max_tokens: int,
        priority: int = 0,
        lora: int = 0,
    ) -> None:  # written out: mypyc does not compile what a dataclass generates
        self.index = index
        self.request_id = request_id
        self.arrival_s = arrival_s
        self.num_prompt_tokens = num_prompt_tokens
        self.max_tokens = max_tokens
        self.priority = priority
        self.lora = lora

    def time_first_token(self, at_s: float) -> None:
        """The first token comes back then."""
        self.first_token_s = at_s
        if self.noted_in is not None:
            self.noted_in.append(self)

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt and of all samples, those in flight included; not valid while decoding."""
        return self.num_prompt_tokens + self.num_sampled_tokens


def admission_order(request: Request) -> int:
    """Sort key: the order of admission."""
    return request.serial
