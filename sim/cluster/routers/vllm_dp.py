"""vLLM's own balancers between its data-parallel engines as a router: what they do says sim/engine/balancer.py."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from sim.cluster.options import option
from sim.cluster.replica import Replica
from sim.cluster.routers.router import Fleet, Router, RouterOptions, place_of
from sim.engine.balancer import Balancers
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
        return VllmDataParallel(fleet.num_replicas, self.api_servers, self.interval_s, fleet.clock)


class VllmDataParallel(Router):
    """Tells the balancers what engines show, and asks them; a request comes as the `clock` says, or where there is none as it arrives."""

    listens = True

    def __init__(
        self, num_engines: int, num_clients: int, interval_s: float, clock: Callable[[], float] | None = None
    ) -> None:
        self.scrape_interval_s = interval_s
        self._num_engines = num_engines
        self._clock = clock
        self.balancers = Balancers(num_engines, num_clients, interval_s)

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:
        balancers, updates = self.balancers, self.balancers.updates
        is_whole = len(replicas) == self._num_engines
        if updates.passed(self._clock() if self._clock else request.arrival_s):
            shown = [replica.metrics(updates.last_s) for replica in replicas]
            if is_whole:
                balancers.update_all(shown)
            else:
                balancers.update([(replica.number, metrics) for replica, metrics in zip(replicas, shown, strict=True)])
        if is_whole:
            return replicas[balancers.choose(request)]
        chosen = balancers.choose(request, {replica.number for replica in replicas})
        return replicas[place_of(chosen, replicas)]

    def answered(self, request: Request, replica: int) -> None:
        self.balancers.answered(request, replica)
