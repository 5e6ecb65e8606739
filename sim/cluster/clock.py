"""The order of events: by time and, at one instant, by kind.

SimPy's own timeouts are relative, and `now + (t - now)` is not always `t`; these events happen exactly at their time.
"""

from collections.abc import Callable
from heapq import heappush

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
