"""Which replica of a cluster gets the next request."""

from collections.abc import Sequence
from typing import Literal, Protocol

from sim.cluster.replica import Replica
from sim.engine.request import Request
from sim.errors import check_choice

RouterName = Literal["round_robin", "least_loaded"]

WAITING_WEIGHT = 4  # of a waiting request against a running one in vLLM's internal load balancer (0.11)


class Router(Protocol):
    """Chooses a replica for each request as it arrives; may keep count of what it chose."""

    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:
        """The number of the replica that gets the request."""
        ...


class RoundRobin:
    """One after the other, whatever they have to do."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:  # noqa: ARG002 - a router's interface
        chosen = self._next % len(replicas)
        self._next = chosen + 1
        return chosen


class LeastLoaded:
    """The least of 4 x waiting + running, as vLLM's internal load balancer scores its data-parallel engines.

    Deliberate differences: loads are those of this instant, where vLLM's coordinator sends them every 100 ms; the first
    of equals is sought from the replica after the last chosen one, where vLLM starts at an offset for each client.
    """

    def __init__(self) -> None:
        self._start = 0

    def choose(self, request: Request, replicas: Sequence[Replica]) -> int:  # noqa: ARG002 - a router's interface
        scores = [WAITING_WEIGHT * waiting + running for waiting, running in (replica.load for replica in replicas)]
        turns = range(self._start, self._start + len(scores))
        chosen = min((turn % len(scores) for turn in turns), key=scores.__getitem__)
        self._start = chosen + 1
        return chosen


ROUTERS: dict[str, type[RoundRobin] | type[LeastLoaded]] = {"round_robin": RoundRobin, "least_loaded": LeastLoaded}


def make_router(name: str) -> Router:
    """A fresh router of that name; ConfigError for an unknown one."""
    check_choice("router", name, ROUTERS)
    return ROUTERS[name]()
