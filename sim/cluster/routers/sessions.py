"""A session stays with a replica: consistent hashing, plain and as vLLM's production-stack has it.

production-stack's `session` router: vllm-project/production-stack @a6c01db0, src/vllm_router/routers/routing_logic.py.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import md5
from itertools import count

from sim.cluster.options import option
from sim.cluster.replica import Replica
from sim.cluster.routers.router import Fleet, Router, RouterOptions, numbered
from sim.engine.request import Request

POINTS_PER_REPLICA = 160  # of the ring in uhashring, which production-stack uses: 40 x 4 as in ketama


class HashRing:
    """Replicas at points of a circle; a key belongs to the next point. If a replica is removed, only its keys move."""

    def __init__(self, num_replicas: int) -> None:
        points = sorted(
            (_hash(f"replica-{number}-{point}"), number)
            for number in range(num_replicas)
            for point in range(POINTS_PER_REPLICA)
        )
        self._points = [point for point, _ in points]
        self._numbers = [number for _, number in points]

    def owners(self, key: str) -> Iterator[int]:
        """The numbers at the points that follow a key, round and round: it belongs to the first of them that is there."""
        place = bisect_right(self._points, _hash(key))
        for step in count(place):
            yield self._numbers[step % len(self._numbers)]

    def replica(self, key: str, replicas: Sequence[Replica]) -> Replica:
        """The candidate to which a key belongs."""
        return next(found for number in self.owners(key) if (found := numbered(number, replicas)))


def _hash(key: str) -> int:
    return int.from_bytes(md5(key.encode(), usedforsecurity=False).digest()[:8])


@dataclass(frozen=True)
class ConsistentHashOptions(RouterOptions):
    @property
    def is_blind(self) -> bool:
        return True

    def router(self, fleet: Fleet) -> Router:
        return ConsistentHash(fleet)


class ConsistentHash(Router):
    """By session, or by request if the trace has no sessions."""

    def __init__(self, fleet: Fleet) -> None:
        self._ring = HashRing(fleet.num_replicas)
        self._keys = fleet.trace.session_id or fleet.trace.request_id

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:
        return self._ring.replica(self._keys[request.index], replicas)


@dataclass(frozen=True)
class ProductionStackSessionOptions(RouterOptions):
    """Requests without a session count for `stats_window_s`: the `--request-stats-window` of production-stack."""

    stats_window_s: float = option(60.0, at_least=0.0)

    @property
    def is_blind(self) -> bool:
        return True

    def router(self, fleet: Fleet) -> Router:
        return ProductionStackSession(fleet, self.stats_window_s)


class ProductionStackSession(Router):
    """By session; without one, the replica that was sent the fewest requests in the window, one never used first.

    Deliberate difference: points of the ring stand for replica numbers, not for their URLs.
    """

    def __init__(self, fleet: Fleet, window_s: float) -> None:
        self._ring = HashRing(fleet.num_replicas)
        self._sessions = fleet.trace.session_id
        self._window_s = window_s
        self._sent: list[deque[float]] = [deque() for _ in range(fleet.num_replicas)]
        self._is_used = [False] * fleet.num_replicas

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:
        session = self._sessions[request.index] if self._sessions else ""
        chosen = self._ring.replica(session, replicas) if session else self._least_asked(request.arrival_s, replicas)
        self._sent[chosen.number].append(request.arrival_s)
        self._is_used[chosen.number] = True
        return chosen

    def _least_asked(self, now_s: float, replicas: Sequence[Replica]) -> Replica:
        unused = next((replica for replica in replicas if not self._is_used[replica.number]), None)
        if unused is not None:
            return unused
        for sent in self._sent:
            while sent and sent[0] < now_s - self._window_s:
                sent.popleft()
        return min(replicas, key=lambda replica: len(self._sent[replica.number]))
