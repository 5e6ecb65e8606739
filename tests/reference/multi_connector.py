"""Two connectors in one: KV from and to other engines, and behind it a CPU, or a store, that keeps it as well.

Mirrors vLLM's MultiConnector (0.32 and 0.33): a request loads from the first that has something, both are told what becomes of it.
"""

from collections.abc import Sequence
from typing import Any

from sim.engine.config import SchedulerConfig
from tests.reference.connector import Connector, Event, Job, Remote
from tests.reference.kv_cache import KVCacheManager, PrefixHit
from tests.reference.modes import Offload
from tests.reference.offload import OffloadConnector
from tests.reference.request import Request


class MultiConnector:
    """Who loads is told in `_chosen` until the next one is looked for."""

    def __init__(self, remote: Remote, offload: Any) -> None:
        self.events: list[Event] = []
        remote.events = offload.events = self.events
        self._both = (remote, offload)
        self.remote, self.offload = remote, offload
        self._chosen: Any = remote

    @property
    def now_s(self) -> float:
        return self.remote.now_s

    @now_s.setter
    def now_s(self, now_s: float) -> None:
        self.remote.now_s = self.offload.now_s = now_s

    @property
    def has_pending(self) -> bool:
        return any(one.has_pending for one in self._both)

    @property
    def brings_states(self) -> bool:
        return all(one.brings_states for one in self._both)

    @property
    def begins_loads(self) -> bool:
        return any(one.begins_loads for one in self._both)

    def find(self, request: Request, hit: PrefixHit) -> int | None:
        """All are asked; nothing is known as long as one of them does not know."""
        found = [one.find(request, hit) for one in self._both]
        self._chosen = self.remote if found[0] else self.offload
        return None if None in found else found[0] or found[1]

    def load(self, request: Request, hit: PrefixHit, num_external: int) -> None:
        self._chosen.load(request, hit, num_external)
        if self._chosen is self.remote and self.offload.hears_of_allocations:
            self.offload.hears_of_table(request)

    def preempted(self, request: Request) -> None:
        for one in self._both:
            one.preempted(request)

    def scheduled(self, rows: Sequence[tuple[Request, int]]) -> None:
        for one in self._both:
            one.scheduled(rows)

    def begin(self, start_s: float) -> float:
        """The CPU's worker first makes sure that nothing is written over that it still stores."""
        return self.remote.begin(self.offload.begin(start_s))

    def finished(self, request: Request) -> bool:
        is_held, _ = (one.finished(request) for one in self._both)
        return is_held

    def aborted(self, request: Request) -> None:
        for one in self._both:
            one.aborted(request)

    def reported(self, until_s: float) -> list[Job]:
        over = [job for one in self._both for job in one.reported(until_s)]
        return sorted(over, key=lambda job: (job.end_s, job.request.request_id))


def beside_cpu(remote: Remote, offload: Offload | None, kv: KVCacheManager, config: SchedulerConfig) -> Connector:
    """The same where there is no CPU tier."""
    return MultiConnector(remote, OffloadConnector(offload, kv, config)) if offload else remote


def tier_of(connector: Connector | None) -> OffloadConnector | None:
    """The part that keeps KV on the CPU, by itself or beside another; None without one."""
    found = connector.offload if isinstance(connector, MultiConnector) else connector
    return found if isinstance(found, OffloadConnector) else None


def remote_of(connector: Connector | None) -> Any:
    """The part that talks to other engines."""
    return connector.remote if isinstance(connector, MultiConnector) else connector
