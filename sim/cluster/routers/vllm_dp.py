"""vLLM's own balancer between its data-parallel engines, as its API servers run it.

Mirrors vllm/v1/engine/core_client.py (0.33, `get_core_engine_for_request`; checked against recorded choices) and what
coordinator.py sends it: counts as they were at the last multiple of 100 ms, where they differ from those sent before.
Deliberate difference: with several API servers requests go to one after the other, where the kernel picks one.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import ClassVar

from sim.cluster.clock import Ticks
from sim.cluster.options import option
from sim.cluster.replica import Replica
from sim.cluster.routers.router import Fleet, Router, RouterOptions, place_of
from sim.engine.metrics import Metrics
from sim.engine.request import Request
from sim.errors import ConfigError

NOTHING: Metrics = (0, 0, 0.0)
WAITING_WEIGHT = 6
FREE_KV_USAGE = 0.5
"""Up to this KV cache usage a waiting request counts no more than a running one."""


class Balancer:
    """One API server's view of the engines: the counts that it was sent last, and its own requests in flight."""

    def __init__(self, num_engines: int, num_clients: int = 1, client: int = 0) -> None:
        self._num_clients = num_clients
        self._start = num_engines * client // num_clients
        self._counts = [NOTHING] * num_engines
        self._num_in_flight = [0] * num_engines
        self._scores = [0.0] * num_engines

    def update(self, counts: Sequence[Metrics]) -> None:
        """The coordinator has sent new counts."""
        self._counts = list(counts)
        self._scores = [self._score(engine) for engine in range(len(self._counts))]

    def choose(self, candidates: Container[int] | None = None) -> int:
        """The engine for a new request: the first of the lowest score, starting at a place that moves with each request.

        `candidates` are the engines that can be chosen, if not all.
        """
        num_engines = len(self._counts)
        turns = [*range(self._start, num_engines), *range(self._start)]
        if candidates is not None:
            turns = [engine for engine in turns if engine in candidates]
        chosen: int = min(turns, key=self._scores.__getitem__)
        self._start = (self._start + 1) % num_engines
        num_waiting, num_running, kv_cache_usage = self._counts[chosen]
        self._counts[chosen] = (num_waiting + self._num_clients, num_running, kv_cache_usage)
        self.sent(chosen)
        return chosen

    def _score(self, engine: int) -> float:
        num_waiting, num_running, kv_cache_usage = self._counts[engine]
        score: float = max(self._num_clients * self._num_in_flight[engine], num_waiting + num_running)
        if num_waiting > 0:
            score += num_waiting * WAITING_WEIGHT * max(0.0, kv_cache_usage - FREE_KV_USAGE)
        return score

    def sent(self, engine: int) -> None:
        """A request goes to an engine, chosen here or by its client."""
        self._num_in_flight[engine] += 1
        self._scores[engine] = self._score(engine)

    def answered(self, engine: int) -> None:
        """One of this server's requests has ended."""
        self._num_in_flight[engine] -= 1
        self._scores[engine] = self._score(engine)


@dataclass(frozen=True)
class VllmDataParallelOptions(RouterOptions):
    """`api_servers` is vLLM's `--api-server-count`; the coordinator sends counts every `interval_s`."""

    is_of_one_server: ClassVar[bool] = True
    api_servers: int = option(1, at_least=1)
    interval_s: float = option(0.1, at_least=0.001)

    def router(self, fleet: Fleet) -> Router:
        if any(config != fleet.configs[0] for config in fleet.configs):
            raise ConfigError(
                "router vllm_dp balances the data-parallel engines of one vLLM, which are alike, got pools that differ; choose another router."
            )
        return VllmDataParallel(fleet.num_replicas, self.api_servers, self.interval_s)


class VllmDataParallel(Router):
    """One balancer for each API server; each request belongs to the one that took it."""

    listens = True

    def __init__(self, num_engines: int, num_clients: int, interval_s: float) -> None:
        self.scrape_interval_s = interval_s
        self._balancers = [Balancer(num_engines, num_clients, client) for client in range(num_clients)]
        self._turns = cycle(self._balancers)
        self._owners: dict[Request, Balancer] = {}
        self._updates = Ticks(interval_s)
        self._counts = [NOTHING] * num_engines

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:
        self._take_counts(request.arrival_s, replicas)
        balancer = self._owners[request] = next(self._turns)
        is_whole = len(replicas) == len(self._counts)
        chosen = balancer.choose(None if is_whole else {replica.number for replica in replicas})
        return replicas[place_of(chosen, replicas)]

    def _take_counts(self, now_s: float, replicas: Sequence[Replica]) -> None:
        """Apply the counts that the coordinator has sent by now."""
        if not self._updates.passed(now_s):
            return
        counts = list(self._counts)
        for replica in replicas:
            counts[replica.number] = replica.metrics(self._updates.last_s)
        if counts != self._counts:
            self._counts = counts
            for balancer in self._balancers:
                balancer.update(counts)

    def answered(self, request: Request, replica: int) -> None:
        self._owners.pop(request).answered(replica)
