"""Routers that use no information about requests or replicas."""

from collections import defaultdict
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

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:  # noqa: ARG002 - a router's interface
        return replicas[self._rng.randrange(len(replicas))]


@dataclass(frozen=True)
class RoundRobinOptions(RouterOptions):
    def router(self, fleet: Fleet) -> Router:  # noqa: ARG002 - a router's interface
        return RoundRobin()


class RoundRobin(Router):
    """One after the other, whatever their load: the candidate whose last turn is the longest ago, or never was."""

    def __init__(self) -> None:
        self._turns: defaultdict[int, int] = defaultdict(int)
        self._num_turns = 0

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:  # noqa: ARG002 - a router's interface
        turns = [self._turns[replica.number] for replica in replicas]
        chosen = replicas[turns.index(min(turns))]
        self._num_turns += 1
        self._turns[chosen.number] = self._num_turns
        return chosen


class TheOnlyOne(Router):
    """For a single replica, whatever the router would be: nothing is asked, told or drawn."""

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:  # noqa: ARG002 - a router's interface
        return replicas[0]
