"""The order of what happens: by time and, at one instant, by kind.

SimPy's own timeouts are relative, and `now + (t - now)` is not always `t`; these events happen at the very time they name.
"""

from heapq import heappush
from math import floor

import simpy
from simpy.events import EventPriority

ARRIVAL = EventPriority(0)
"""Requests come first, so that a pass of the same instant sees them."""
ANSWER = EventPriority(1)
"""Then tokens come back; SimPy's own events are of this kind."""
ASK = EventPriority(2)
"""Then whoever has an answer acts, knowing of all that came back."""
PASS = EventPriority(3)
"""Engines schedule last."""


class At(simpy.Event):
    """Happens at a time that has not passed yet, in its kind's turn; equals happen in the order in which they were made."""

    def __init__(self, env: simpy.Environment, time_s: float, kind: EventPriority) -> None:
        assert time_s >= env.now, "the clock does not run backwards"
        self.env = env
        self.callbacks = []
        self._value = None
        self._ok = True
        heappush(env._queue, (time_s, kind, next(env._eid), self))  # noqa: SLF001 - schedule() takes delays alone


class Answer(simpy.Event):
    """Happens when it is given, in its turn of that instant."""

    def give(self) -> None:
        self._ok = True
        self._value = None
        self.env.schedule(self, ASK)


def last_multiple(now_s: float, interval_s: float) -> float:
    """The last multiple of an interval that has come."""
    number = floor(now_s / interval_s)
    at_s = number * interval_s
    return at_s if at_s <= now_s else (number - 1) * interval_s
