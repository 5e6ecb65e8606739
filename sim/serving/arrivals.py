"""Requests that come when the trace says.

Nothing reaches an engine between two arrivals, so no calendar of events is kept: each arrival lets the engine catch up.
"""

import math
from collections.abc import Callable, Iterable
from typing import Protocol

from sim.serving.request import Request


class Door(Protocol):
    """Whatever takes requests in: a replica, a router before many."""

    def advance(self, until_s: float) -> object:
        """Do all that begins before that time."""
        ...

    def submit(self, request: Request) -> None:
        """Take in a request at its time of arrival; whatever begins at this very instant sees it."""
        ...


def replay(requests: Iterable[Request], door: Door, on_arrival: Callable[[int], None] | None = None) -> None:
    """Bring requests, in order of arrival, to the door, and let everything end. `on_arrival` is told the row of each."""
    for request in requests:
        door.advance(request.arrival_s)
        door.submit(request)
        if on_arrival:
            on_arrival(request.index)
    door.advance(math.inf)
