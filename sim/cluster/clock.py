"""The order of events: by time and, at one instant, by kind.

SimPy's own timeouts are relative, and `now + (t - now)` is not always `t`; these events happen exactly at their time.
"""

from collections.abc import Callable
from heapq import heappush
from math import floor, inf

import simpy
from simpy.events import EventPriority

ARRIVAL = EventPriority(0)
"""Requests come first, so that a pass of the same instant sees them."""
ANSWER = EventPriority(1)
"""Then tokens come back; SimPy's own events are of this kind."""
FLEET = EventPriority(2)
"""Then replicas come, go and fail, and requests time out."""
ASK = EventPriority(3)
"""Then clients and routers act on answers, after all tokens of the instant have come back."""
PASS = EventPriority(4)
"""Engines schedule last."""


class At(simpy.Event):
    """An event at a time not before now, ordered by its kind; events of one time and kind happen in the order of creation."""

    def __init__(self, env: simpy.Environment, time_s: float, kind: EventPriority) -> None:
        assert time_s >= env.now, "the clock does not run backwards"
        self.env = env
        self.callbacks = []
        self._value = None
        self._ok = True
        heappush(env._queue, (time_s, kind, next(env._eid), self))  # noqa: SLF001 - schedule() takes delays alone


def call_at(env: simpy.Environment, time_s: float, kind: EventPriority, act: Callable[[], object]) -> None:
    """Have something done at a time not before now."""

    def happened(_event: simpy.Event) -> None:
        act()

    event = At(env, time_s, kind)
    assert event.callbacks is not None, "it has not happened yet"
    event.callbacks.append(happened)


class Answer(simpy.Event):
    """An event that happens at the instant of `give`, ordered by its kind."""

    def give(self) -> None:
        self._ok = True
        self._value = None
        self.env.schedule(self, ASK)


def last_multiple(now_s: float, interval_s: float) -> float:
    """The last multiple of an interval that is not after now."""
    number = floor(now_s / interval_s)
    at_s = number * interval_s
    return at_s if at_s <= now_s else (number - 1) * interval_s


class Ticks:
    """Multiples of an interval; `last_s` is the one that was told of last."""

    def __init__(self, interval_s: float, last_s: float = -inf) -> None:
        self._interval_s = interval_s
        self.last_s = last_s

    def passed(self, now_s: float) -> bool:
        """Whether there has been one since, by a time that is not before the last call's."""
        at_s = last_multiple(now_s, self._interval_s)
        is_new = at_s > self.last_s
        if is_new:
            self.last_s = at_s
        return is_new
