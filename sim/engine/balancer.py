"""vLLM's own balancers between its data-parallel engines, one in each API server: which engine gets a request, by what is known of them.

Mirrors vllm/v1/engine/core_client.py (0.33, `get_core_engine_for_request`; checked against recorded choices), and what coordinator.py
sends: counts as they were at the last multiple of an interval. Deliberate differences: they are sent whether or not they have changed since, which
they do with every request; with several API servers requests go to one after the other, where the kernel picks one.
"""

from collections.abc import Container, Sequence
from math import inf
from typing import Final

from sim.engine.metrics import NOTHING_SHOWN, Metrics
from sim.engine.request import Request
from sim.engine.ticks import Ticks

WAITING_WEIGHT: Final = 6
FREE_KV_USAGE: Final = 0.5
"""Up to this KV cache usage a waiting request counts no more than a running one."""


class Balancer:
    """One API server's view of the engines: the counts that it was sent last, and its own requests in flight."""

    def __init__(self, num_engines: int, num_clients: int = 1, client: int = 0) -> None:
        self._num_clients = num_clients
        self._start = num_engines * client // num_clients
        self._counts = [NOTHING_SHOWN] * num_engines
        self._num_in_flight = [0] * num_engines
        self._scores = [0.0] * num_engines

    def update(self, counts: Sequence[Metrics]) -> None:
        """The coordinator has sent new counts."""
        self._counts = list(counts)
        for engine in range(len(self._counts)):
            self._scores[engine] = self._score(engine)

    def choose(self, candidates: Container[int] | None = None) -> int:
        """The engine for a new request: the first of the lowest score, starting at a place that moves with each request.

        `candidates` are the engines that can be chosen, if not all.
        """
        num_engines, start = len(self._counts), self._start
        chosen, lowest = start, inf
        for place in range(start, start + num_engines):
            engine = place % num_engines
            score = self._scores[engine]
            if score < lowest and (candidates is None or engine in candidates):
                chosen, lowest = engine, score
        self._start = (start + 1) % num_engines
        num_waiting, num_running, kv_cache_usage = self._counts[chosen]
        self._counts[chosen] = (num_waiting + self._num_clients, num_running, kv_cache_usage)
        self.sent(chosen)
        return chosen

    def _score(self, engine: int) -> float:
        num_waiting, num_running, kv_cache_usage = self._counts[engine]
        score = float(max(self._num_clients * self._num_in_flight[engine], num_waiting + num_running))
        if num_waiting > 0 and kv_cache_usage > FREE_KV_USAGE:
            score += num_waiting * WAITING_WEIGHT * (kv_cache_usage - FREE_KV_USAGE)
        return score

    def sent(self, engine: int) -> None:
        """A request goes to an engine, chosen here or by its client."""
        self._num_in_flight[engine] += 1
        self._scores[engine] = self._score(engine)

    def answered(self, engine: int) -> None:
        """One of this server's requests has ended."""
        self._num_in_flight[engine] -= 1
        self._scores[engine] = self._score(engine)


class Balancers:
    """Those of all API servers. Each request belongs to the one that took it; all are sent counts at the same `updates`."""

    def __init__(self, num_engines: int, num_clients: int, interval_s: float) -> None:
        self.updates = Ticks(interval_s)
        self._balancers = [Balancer(num_engines, num_clients, client) for client in range(num_clients)]
        self._turn = 0
        self._owners: dict[Request, Balancer] = {}
        self._counts = [NOTHING_SHOWN] * num_engines

    def update(self, shown: Sequence[tuple[int, Metrics]]) -> None:
        """What some engines show at an update, by their numbers."""
        for engine, metrics in shown:
            self._counts[engine] = metrics
        self._send()

    def update_all(self, shown: Sequence[Metrics]) -> None:
        """What all engines show at an update."""
        self._counts = list(shown)
        self._send()

    def _send(self) -> None:
        for balancer in self._balancers:
            balancer.update(self._counts)

    def choose(self, request: Request, candidates: Container[int] | None = None) -> int:
        """The engine for a new request, by the balancer whose turn it is."""
        balancer = self._owners[request] = self._balancers[self._turn]
        self._turn = (self._turn + 1) % len(self._balancers)
        return balancer.choose(candidates)

    def answered(self, request: Request, engine: int) -> None:
        """A request has ended."""
        self._owners.pop(request).answered(engine)
