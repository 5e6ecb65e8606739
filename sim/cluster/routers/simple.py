"""Routers that use no information about requests or replicas."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from sim.cluster.replica import Replica
from sim.cluster.routers.router import Fleet, Router, RouterOptions, numbered
from sim.engine.request import Request


@dataclass(frozen=True)
class RandomOptions(RouterOptions):
    @property
    def is_blind(self) -> bool:
        return True

    def router(self, fleet: Fleet) -> Router:
        return RandomRouter(fleet)


class RandomRouter(Router):
    """A random replica, all with equal probability."""

    def __init__(self, fleet: Fleet) -> None:
        self._rng = fleet.rng()

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:  # noqa: ARG002 - a router's interface
        return replicas[self._rng.randrange(len(replicas))]


@dataclass(frozen=True)
class RoundRobinOptions(RouterOptions):
    @property
    def is_blind(self) -> bool:
        return True

    def router(self, fleet: Fleet) -> Router:
        return RoundRobin(fleet.num_replicas)


class RoundRobin(Router):
    """One after the other, whatever their load: the candidate whose last turn is the longest ago, or never was."""

    def __init__(self, num_replicas: int) -> None:
        self._in_turn = OrderedDict.fromkeys(range(num_replicas))

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:  # noqa: ARG002 - a router's interface
        candidates = (numbered(number, replicas) for number in self._in_turn)
        chosen = next(candidate for candidate in candidates if candidate is not None)
        self._in_turn.move_to_end(chosen.number)
        return chosen


class TheOnlyOne(Router):
    """For a single replica, whatever the router would be: nothing is asked, told or drawn."""

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:  # noqa: ARG002 - a router's interface
        return replicas[0]
