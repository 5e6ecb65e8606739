"""A request and where it stands."""

from dataclasses import dataclass, field
from enum import Enum

from tests.reference.content import BlockKeys
from tests.reference.modes import UNSCRIPTED, Script


class RequestStatus(Enum):
    """vLLM's words for where a request stands."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    SWAPPED = "swapped"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Request:
    """Few counters, from which all else follows. `index` is the row in the trace.

    `num_computed_tokens` counts KV positions scheduled so far and runs ahead of the device; `num_output_tokens` those
    returned; `num_output_placeholders` those scheduled and not yet returned (async scheduling only), drafts included;
    `num_samples_in_flight` batches on the device that sample for it, `num_stale_tokens` what was on the device of it when it
    was preempted, whose outputs still arrive; `num_drafts` what the next step may verify; `attempt` counts how often it has
    begun to compute anew; up to `junction` tokens others have had the same prompt, 0 where it is not known that they part. `others` are the requests for the answers to its prompt beyond the first, and `together` those of
    them that a router takes for one with it.
    """

    index: int
    request_id: str
    arrival_s: float
    num_prompt_tokens: int
    max_tokens: int
    block_keys: BlockKeys
    priority: int = 0
    lora: int = 0
    client: str = ""
    status: RequestStatus = RequestStatus.WAITING
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    num_output_placeholders: int = 0
    num_stale_tokens: int = 0
    num_in_flight_tokens: int = 0
    num_samples_in_flight: int = 0
    num_drafts: int = 0
    num_verifications: int = 0
    num_proposals: int = 0
    eligible_call: int = 0
    has_asked_remote: bool = False
    is_loading: bool = False
    num_loaded_tokens: int = 0
    script: Script = UNSCRIPTED
    attempt: int = 0
    num_preemptions: int = 0
    num_cached_tokens: int | None = None
    junction: int = 0
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    finish_s: float | None = None
    rejected: str | None = None
    failed: str | None = None
    block_tables: list[list[int]] = field(default_factory=list)
    num_hashed_blocks: list[int] = field(default_factory=list)
    state_blocks: list[int] = field(default_factory=list)
    states_before: dict[int, int] = field(default_factory=dict)
    holds_states: bool = False
    written_states: tuple[int, int] | None = None
    first: "Request | None" = None
    num_answered: int = 0
    others: list["Request"] = field(default_factory=list)
    together: list["Request"] = field(default_factory=list)

    @property
    def has_ended(self) -> bool:
        """As a router sees it."""
        return all(one.finish_s is not None for one in (self, *self.together))

    @property
    def num_tokens(self) -> int:
        """All tokens known so far: the prompt and what has been returned."""
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def num_wanted_tokens(self) -> int:
        """What a step could schedule: 1 and the drafts for a decode, the rest of the prompt for a prefill."""
        return self.num_tokens + self.num_drafts + self.num_output_placeholders - self.num_computed_tokens

    @property
    def last_token_is_in_flight(self) -> bool:
        """Whether a token on its way is known to be the last, so that nothing more needs to be scheduled."""
        ahead = self.num_computed_tokens + 2 - self.num_output_placeholders
        return self.num_output_placeholders > 0 and ahead >= self.num_prompt_tokens + self.max_tokens

    def reset(self) -> None:
        """Recompute preemption: what was computed is lost, what was generated is kept."""
        self.status = RequestStatus.PREEMPTED
        self.num_computed_tokens = 0
        self.num_stale_tokens = self.num_in_flight_tokens
        self.num_output_placeholders = 0
        self.num_drafts = 0
        self.attempt += 1
        self.num_preemptions += 1

    def swap_out(self) -> None:
        """Preemption by swapping: what was computed is kept too, elsewhere; tokens in flight arrive as if it ran."""
        self.status = RequestStatus.SWAPPED
        self.num_drafts = 0
        self.num_preemptions += 1
