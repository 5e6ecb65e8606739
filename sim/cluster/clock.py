"""The order of events: by time and, at one instant, by kind and then by replica or in the order of creation.

SimPy's own timeouts are relative, and `now + (t - now)` is not always `t`; these events happen exactly at their time.
"""

from collections.abc import Callable
from heapq import heappush

import simpy
from simpy.events import NORMAL, EventPriority

ARRIVAL = EventPriority(NORMAL + 1)
"""Requests come first, so that a pass of the same instant sees them; only SimPy's own events come before: what a thing triggers happens before the next."""
RETRY = EventPriority(ARRIVAL + 1)
"""Then those that were lost come again, whenever that became known."""
ANSWER = EventPriority(RETRY + 1)
"""Then tokens come back, those of several replicas in order of their numbers (`at_replica`)."""
TRANSFER = EventPriority(1 << 29)
"""Then transfers begin and end, so that a batch that comes back at once tells of none that it asked for."""
FLEET = EventPriority(TRANSFER + 1)
"""Then replicas come, go and fail, and requests time out."""
ASK = EventPriority(TRANSFER + 2)
"""Then clients and routers act on answers, after all tokens of the instant have come back."""
PASS = EventPriority(TRANSFER + 3)
"""Engines schedule last, also in order of their numbers."""


def at_replica(kind: EventPriority, number: int) -> EventPriority:
    """ANSWER or PASS as the kind of one replica's events.

    Those of several at one instant happen in order of their numbers: when an event was created depends on how many steps were planned at once.
    """
    return EventPriority(kind + number)


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
