"""Two replicas drawn at random, and the one with fewer requests in flight.

After SGLang's gateway (sgl-model-gateway/src/policies/power_of_two.rs @065f331f) where its workers report no token loads:
in-flight requests as the router itself counts them, and the first drawn wins a tie.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sim.cluster.replica import Replica
from sim.cluster.routers.router import Fleet, Router, RouterOptions
from sim.engine.request import Request


@dataclass(frozen=True)
class PowerOfTwoOptions(RouterOptions):
    def router(self, fleet: Fleet) -> Router:
        return PowerOfTwo(fleet)


class PowerOfTwo(Router):
    """Draws two distinct replicas; `_num_in_flight` counts the unanswered requests of each."""

    listens = True

    def __init__(self, fleet: Fleet) -> None:
        self._rng = fleet.rng()
        self._num_in_flight = [0] * fleet.num_replicas

    def choose(self, request: Request, replicas: Sequence[Replica]) -> Replica:  # noqa: ARG002 - a router's interface
        chosen = self._of_two(replicas) if len(replicas) > 1 else replicas[0]
        self._num_in_flight[chosen.number] += 1
        return chosen

    def _of_two(self, replicas: Sequence[Replica]) -> Replica:
        first = self._rng.randrange(len(replicas))
        second = self._rng.randrange(len(replicas) - 1)
        second += second >= first
        one, other = replicas[first], replicas[second]
        return one if self._num_in_flight[one.number] <= self._num_in_flight[other.number] else other

    def answered(self, request: Request, replica: int) -> None:  # noqa: ARG002 - a router's interface
        self._num_in_flight[replica] -= 1
