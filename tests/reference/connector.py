"""KV that comes from elsewhere or goes there: what the scheduler asks, what the worker does and when it says so.

Mirrors vLLM's kv_connector (nixl in pull mode, an external store) as `golden/RULES_SCALING.md`, section 5, has recorded
it. A transfer is reported with the first batch that ends (or starts) when it is over or later.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sim.engine.config import SchedulerConfig
from tests.reference.kv_cache import KVCacheManager, PrefixHit
from tests.reference.modes import Transfers
from tests.reference.request import Request

Event = list[Any]
StatesKept = Mapping[Request, Sequence[tuple[int, int, int]]]
"""Of each request the group, the block, and after how many blocks it stands."""


@dataclass(eq=False)
class Job:
    """A transfer under way, of blocks each in its KV group; `end_s` None until it has begun."""

    request: Request
    name: str
    duration_s: float = 0.0
    end_s: float | None = None
    num_tokens: int = 0
    blocks: Sequence[tuple[int, int]] = ()
    keys: Sequence[Any] = field(default_factory=list)


class Connector(Protocol):
    """The scheduler's and the worker's side in one; `events` are told in the recorder's words."""

    events: list[Event]
    now_s: float

    @property
    def waited_s(self) -> float:
        """For so long lookups have held the pass up."""
        ...

    @property
    def has_pending(self) -> bool:
        """Whether something is still on its way."""
        ...

    @property
    def brings_states(self) -> bool:
        """Whether what it has goes with a state, so that what full attention has is enough to begin with."""
        ...

    @property
    def begins_loads(self) -> bool:
        """Whether the pass that is over has asked for some."""
        ...

    def find(self, request: Request, hit: PrefixHit) -> int | None:
        """Tokens beyond the local hit that can be had from elsewhere; None to be asked again later."""
        ...

    def load(self, request: Request, hit: PrefixHit, num_external: int) -> None:
        """Blocks are there: the load begins with the batch of this pass."""
        ...

    def preempted(self, request: Request) -> None: ...

    def scheduled(self, rows: Sequence[tuple[Request, int]], states: StatesKept) -> None:
        """A pass is over: tokens of each request that will be computed with it, and the states that it has made findable."""
        ...

    def begin(self, start_s: float) -> float:
        """The worker begins a batch, an empty one too, and all that has been asked for; when it really begins."""
        ...

    def finished(self, request: Request) -> bool:
        """A request has ended; whether it holds its blocks until they have been sent."""
        ...

    def aborted(self, request: Request) -> None:
        """A request is dropped."""
        ...

    def reported(self, until_s: float) -> list[Job]:
        """What is over by then and has not been reported, in order of completion."""
        ...


class Remote:
    """Nixl, and a store whose contents the requests themselves name."""

    hears_of_allocations = False
    waited_s = 0.0

    def __init__(self, transfers: Transfers, kv: KVCacheManager, config: SchedulerConfig) -> None:
        self.events: list[Event] = []
        self.now_s = 0.0
        self._transfers = transfers
        self._kv = kv
        self._block_size = config.block_size
        self._asked: list[Job] = []
        self._under_way: list[Job] = []

    @property
    def has_pending(self) -> bool:
        return bool(self._asked or self._under_way)

    @property
    def brings_states(self) -> bool:
        return True

    @property
    def begins_loads(self) -> bool:
        return bool(self._asked)

    def find(self, request: Request, hit: PrefixHit) -> int | None:
        script = request.script
        if script.remote_tokens is not None:
            return max(0, script.remote_tokens // self._block_size * self._block_size - hit.num_tokens)
        if not script.is_remote or request.has_asked_remote:
            return 0
        num_tokens = handed_over(request.num_prompt_tokens, self._kv.num_left_to_decode)
        if num_tokens <= hit.num_tokens:
            self.has_all(request)
        return max(0, num_tokens - hit.num_tokens)

    def has_all(self, request: Request) -> None:
        """Nothing is asked for; whoever holds it for the request may hear of that."""

    def load(self, request: Request, hit: PrefixHit, num_external: int) -> None:  # noqa: ARG002 - a connector's interface
        request.has_asked_remote = True
        duration_s = request.script.recv_s + self._transfers.recv_token_s * num_external
        self._asked.append(Job(request, "recv", duration_s, num_tokens=num_external))

    def preempted(self, request: Request) -> None: ...

    def scheduled(self, rows: Sequence[tuple[Request, int]], states: StatesKept) -> None: ...

    def begin(self, start_s: float) -> float:
        free = self._kv.pool.num_free_blocks
        for job in self._asked:
            job.end_s = start_s + job.duration_s
            self.events.append([self.now_s, "recv_start", job.request.request_id, start_s, job.num_tokens, free])
        self._under_way += self._asked
        self._asked = []
        return start_s

    def finished(self, request: Request) -> bool:
        if not request.script.is_sent_on:
            return False
        self._under_way.append(Job(request, "send", end_s=self.now_s + request.script.send_s))
        self.events.append([self.now_s, "send_start", request.request_id])
        return True

    def aborted(self, request: Request) -> None: ...

    def reported(self, until_s: float) -> list[Job]:
        over = over_by(self._under_way, until_s)
        self._under_way = [job for job in self._under_way if job not in over]
        return over


def handed_over(num_prompt_tokens: int, num_left: int) -> int:
    """Tokens of a prompt that are prefilled elsewhere."""
    return num_prompt_tokens - num_left if num_prompt_tokens > num_left else num_prompt_tokens


def over_by(jobs: Sequence[Job], until_s: float) -> list[Job]:
    """Those that are over by then, in order of completion."""
    over = [(job.end_s, job.request.request_id, job) for job in jobs if job.end_s is not None and job.end_s <= until_s]
    return [job for *_, job in sorted(over, key=lambda entry: entry[:2])]


def connector(transfers: Transfers | None, kv: KVCacheManager, config: SchedulerConfig) -> Connector | None:
    """The connector that these transfers ask for."""
    from tests.reference.multi_connector import in_one

    if transfers is None:
        return None
    remote = None if transfers.connector == "offload" else Remote(transfers, kv, config)
    return in_one(remote, transfers.offload, kv, config)
