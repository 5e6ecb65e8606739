"""Which replica of a cluster gets the next request."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol, get_args

from sim.errors import ConfigError, nearest

Routing = Literal["round_robin", "least_loaded"]

WAITING_WEIGHT = 4  # of a waiting request against a running one in vLLM's internal load balancer (0.11)


class Load(NamedTuple):
    """Requests that wait, those not yet looked at included, and requests that run."""

    waiting: int
    running: int


class Router(Protocol):
    """Chooses a replica for each request as it arrives; may keep count of what it chose."""

    def choose(self, loads: Sequence[Load]) -> int:
        """The number of the replica that gets the request."""
        ...


class RoundRobin:
    """One after the other, whatever they have to do."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, loads: Sequence[Load]) -> int:
        chosen = self._next % len(loads)
        self._next = chosen + 1
        return chosen


class LeastLoaded:
    """The least of 4 x waiting + running, as vLLM's internal load balancer scores its data-parallel engines.

    Deliberate differences: loads are those of this instant, where vLLM's coordinator sends them every 100 ms; the first
    of equals is sought from the replica after the last chosen one, where vLLM starts at an offset for each client.
    """

    def __init__(self) -> None:
        self._start = 0

    def choose(self, loads: Sequence[Load]) -> int:
        order = [(self._start + turn) % len(loads) for turn in range(len(loads))]
        chosen = min(order, key=lambda number: WAITING_WEIGHT * loads[number].waiting + loads[number].running)
        self._start = chosen + 1
        return chosen


ROUTERS: dict[str, type[RoundRobin] | type[LeastLoaded]] = {"round_robin": RoundRobin, "least_loaded": LeastLoaded}


def router(routing: str) -> Router:
    """A fresh router of that name; ConfigError for an unknown one."""
    if routing not in ROUTERS:
        raise ConfigError(
            f"routing must be one of {', '.join(get_args(Routing))}, got {routing!r}.{nearest(routing, ROUTERS)}"
        )
    return ROUTERS[routing]()
