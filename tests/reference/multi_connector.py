"""Several connectors in one: KV from and to other engines, a CPU that keeps it, and a store.

Mirrors vLLM's MultiConnector (0.32 and 0.33): a request loads from the first that has something, all are told what becomes of it.
"""

from collections.abc import Sequence
from typing import Any, cast

from sim.engine.config import SchedulerConfig
from tests.reference.connector import Connector, Event, Job, StatesKept
from tests.reference.kv_cache import KVCacheManager, PrefixHit
from tests.reference.modes import Offload
from tests.reference.offload import OffloadConnector
from tests.reference.request import Request


class MultiConnector:
    """`parts` in the order in which they are asked. Who loads is told in `_chosen` until the next one is looked for."""

    def __init__(self, remote: Any, *kept: Any) -> None:
        """The one that talks to other engines, or None, and those where the engine's own KV is kept, the CPU first."""
        self.events: list[Event] = []
        self.parts = [one for one in (remote, *kept) if one is not None]
        self._by_start = [*kept, *self.parts[: -len(kept)]]
        for one in self.parts:
            one.events = self.events
        self._chosen: Any = self.parts[0]

    @property
    def now_s(self) -> float:
        return float(self.parts[0].now_s)

    @now_s.setter
    def now_s(self, now_s: float) -> None:
        for one in self.parts:
            one.now_s = now_s

    @property
    def has_pending(self) -> bool:
        return any(one.has_pending for one in self.parts)

    @property
    def waited_s(self) -> float:
        return float(sum(one.waited_s for one in self.parts))

    @property
    def brings_states(self) -> bool:
        return all(one.brings_states for one in self.parts)

    @property
    def begins_loads(self) -> bool:
        return any(one.begins_loads for one in self.parts)

    def find(self, request: Request, hit: PrefixHit) -> int | None:
        """Nothing is known as long as one of them does not know, and nobody behind that one is asked."""
        found = []
        for one in self.parts:
            num_tokens = one.find(request, hit)
            if num_tokens is None:
                return None
            found.append(num_tokens)
        loading = [place for place, num_tokens in enumerate(found) if num_tokens]
        self._chosen = self.parts[loading[0]] if loading else self.parts[-1]
        return found[loading[0]] if loading else 0

    def load(self, request: Request, hit: PrefixHit, num_external: int) -> None:
        self._chosen.load(request, hit, num_external)
        for one in self.parts:
            if one is not self._chosen and one.hears_of_allocations:
                one.hears_of_table(request)

    def preempted(self, request: Request) -> None:
        for one in self.parts:
            one.preempted(request)

    def scheduled(self, rows: Sequence[tuple[Request, int]], states: StatesKept) -> None:
        for one in self.parts:
            one.scheduled(rows, states)

    def begin(self, start_s: float) -> float:
        """Lookups hold the pass up; the CPU's worker first makes sure that nothing is written over that it still stores."""
        start_s = max(start_s, self.now_s + self.waited_s)
        for one in self._by_start:
            start_s = one.begin(start_s)
        return start_s

    def finished(self, request: Request) -> bool:
        are_held = [one.finished(request) for one in self.parts]
        return any(are_held)

    def aborted(self, request: Request) -> None:
        for one in self.parts:
            one.aborted(request)

    def reported(self, until_s: float) -> list[Job]:
        over = [job for one in self.parts for job in one.reported(until_s)]
        return sorted(over, key=lambda job: (job.end_s, job.request.request_id))


def in_one(
    remote: Any, offload: Offload | None, kv: KVCacheManager, config: SchedulerConfig, store: Any = None
) -> Connector:
    """Those that there are; by itself, if it is but one."""
    tier = OffloadConnector(offload, kv, config) if offload else None
    kept = [one for one in (tier, store) if one is not None]
    if remote is None and len(kept) == 1:
        return kept[0]
    return MultiConnector(remote, *kept) if kept else cast("Connector", remote)


def parts_of(connector: Connector | None) -> list[Any]:
    """As they are asked."""
    return connector.parts if isinstance(connector, MultiConnector) else [connector]


def tier_of(connector: Connector | None) -> OffloadConnector | None:
    """The part that keeps KV on the CPU, by itself or beside another; None without one."""
    return next((one for one in parts_of(connector) if isinstance(one, OffloadConnector)), None)


def remote_of(connector: Connector | None) -> Any:
    """The part that talks to other engines."""
    return parts_of(connector)[0]
