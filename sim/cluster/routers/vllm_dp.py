"""vLLM's own balancers between its data-parallel engines, one in each API server, and what they are told.

Mirrors what vllm/v1/engine/coordinator.py (0.33) sends: counts as they were at the last multiple of 100 ms, where they differ from those sent
before. How a balancer chooses says sim/engine/balancer.py. Deliberate difference: with several API servers requests go to one after the other, where the kernel picks one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import ClassVar

from sim.cluster.clock import Ticks
from sim.cluster.options import option
from sim.cluster.replica import Replica
from sim.cluster.routers.router import Fleet, Router, RouterOptions, place_of
from sim.engine.balancer import NOTHING, Balancer
from sim.engine.request import Request
from sim.errors import ConfigError


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
