"""The process that brings requests in on time."""

from collections.abc import Callable, Generator, Iterable
from typing import Any, Protocol, TypeVar

import simpy
from simpy.events import URGENT


class Arrival(Protocol):
    """Whatever arrives: a request of any engine."""

    index: int
    arrival_s: float


ArrivalT = TypeVar("ArrivalT", bound=Arrival)
ArrivalT_contra = TypeVar("ArrivalT_contra", bound=Arrival, contravariant=True)


class Door(Protocol[ArrivalT_contra]):
    """Whatever takes requests in: a replica, a router."""

    def submit(self, request: ArrivalT_contra) -> None: ...


class Due(simpy.Event):
    """A timeout that happens ahead of everything else at its instant, so that a pass at that instant sees the arrival."""

    def __init__(self, env: simpy.Environment, delay: float) -> None:
        self.env = env
        self.callbacks = []
        self._ok = True
        self._value = None
        env.schedule(self, URGENT, delay)


def arrivals(
    env: simpy.Environment,
    requests: Iterable[ArrivalT],
    door: Door[ArrivalT],
    on_arrival: Callable[[int], None] | None = None,
) -> Generator[simpy.Event, Any, None]:
    """Bring requests to the door at their times, ahead of anything else that happens at the same instant.

    `on_arrival` is told the row of each.
    """
    for request in requests:
        delay_s = request.arrival_s - env.now
        if delay_s > 0:
            yield Due(env, delay_s)
        door.submit(request)
        if on_arrival:
            on_arrival(request.index)
