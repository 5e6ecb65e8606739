"""Routers that use no information about requests or replicas."""

from collections.abc import Sequence
from dataclasses import dataclass

from sim.cluster.replica import Replica
from sim.cluster.routers.router import Fleet, Router, RouterOptions
from sim.engine.request import Request


@dataclass(frozen=True)
class RandomOptions(RouterOptions):
    def router(self, fleet: Fleet) -> Router:
        return RandomRouter(fleet)


class RandomRouter(Router):
    """A random replica, all with equal probability."""

    def __init__(self, fleet: Fleet) -> None:
        self._rng = fleet.rng()

    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:  # noqa: ARG002 - a router's interface
        return self._rng.randrange(len(replicas))


@dataclass(frozen=True)
class RoundRobinOptions(RouterOptions):
    def router(self, fleet: Fleet) -> Router:  # noqa: ARG002 - a router's interface
        return RoundRobin()


class RoundRobin(Router):
    """One after the other, whatever their load."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:  # noqa: ARG002 - a router's interface
        chosen = self._next % len(replicas)
        self._next = chosen + 1
        return chosen
