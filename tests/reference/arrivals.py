"""The process that brings requests in on time, and whose turn it is at one instant."""

from collections.abc import Callable, Generator, Iterable
from typing import Any, Protocol, TypeVar

import simpy
from simpy.events import NORMAL, URGENT, EventPriority


class Arrival(Protocol):
    """Whatever arrives: a request of any engine."""

    index: int
    arrival_s: float


ArrivalT = TypeVar("ArrivalT", bound=Arrival)
ArrivalT_contra = TypeVar("ArrivalT_contra", bound=Arrival, contravariant=True)


class Door(Protocol[ArrivalT_contra]):
    """Whatever takes requests in: a replica, a router."""

    def submit(self, request: ArrivalT_contra) -> None: ...


BEFORE_ALL = EventPriority(URGENT - 1)
"""Metrics are asked for before anything happens at an instant."""
ARRIVAL = EventPriority(NORMAL + 1)
"""Whatever one of these things sets going has happened before the next: SimPy has lower numbers for that."""


RETRY = EventPriority(ARRIVAL + 1)
"""Whoever tries again stands behind those who come for the first time."""


class Due(simpy.Event):
    """A timeout with a priority: arrivals happen ahead of everything else at their instant, so that its passes see them."""

    def __init__(self, env: simpy.Environment, delay: float, priority: EventPriority = ARRIVAL) -> None:
        self.env = env
        self.callbacks = []
        self._ok = True
        self._value = None
        env.schedule(self, priority, delay)


TRANSFER = EventPriority(1 << 29)
"""KV begins and ends to move when all that comes back at an instant has come back; the network is the product's, which has the same number for it."""
FLEET = EventPriority(TRANSFER + 1)
"""Replicas come and go, and requests time out, when all that comes back at an instant has come back."""
ANSWERED = EventPriority(FLEET + 1)
"""Clients act when all that comes back at an instant has come back."""
AFTER_ALL = EventPriority(FLEET + 2)
"""Scheduling passes come last: whoever gets an answer at an instant and asks again at once is seen by its passes."""


def back_from(replica: int) -> EventPriority:
    """Tokens come back from one replica after the other, by their numbers."""
    return EventPriority(RETRY + 1 + replica)


def called_at(replica: int) -> EventPriority:
    """The scheduler of one replica is called after that of the other, by their numbers."""
    return EventPriority(AFTER_ALL + replica)


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
