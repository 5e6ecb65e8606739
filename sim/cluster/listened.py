"""Replicas that only a router listens to: it acts on what it hears when a request comes, and so they catch up then.

They follow the same course as replicas that are processes (replica.py), and the router hears of the same ends before it chooses. Time is
that of the arrivals, a process on SimPy's clock; a heap of times only spares a look at those that have nothing to do by then.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from sim.cluster.replica import Core, ReportingReplica
from sim.engine.metrics import NOTHING_SHOWN, Metrics
from sim.engine.request import Request
from sim.engine.ticks import Ticks

Tell = Callable[[int, Sequence[Request]], None]
"""Told of requests that a replica has finished."""


class Ended(NamedTuple):
    """Requests that a replica has finished, and when."""

    at_s: float
    replica: int
    requests: Sequence[Request]


class Agenda(NamedTuple):
    """What replicas have in common: a heap of when which of them may be `due`, and what has `ended` since the router was told."""

    due: list[tuple[float, int]]
    ended: list[Ended]


class ListenedReplica(ReportingReplica):
    """Goes on with its course at `due_s`, and if it `_rests` as soon as something comes."""

    def __init__(self, core: Core, number: int, pool: int, agenda: Agenda) -> None:
        super().__init__(core, number, pool, self._note)
        self._agenda = agenda
        self._life = self._course()
        next(self._life)
        self.due_s = math.inf
        self._rests = True

    def submit(self, *answers: Request) -> None:
        now_s = answers[0].arrival_s
        self._inbox += answers
        if self._rests:
            self._wait_until(now_s)
        elif plan := self._cut(now_s):
            self._wait_until(plan.end_s)

    def _wait_until(self, due_s: float) -> None:
        self.due_s = due_s
        if due_s < math.inf:
            heappush(self._agenda.due, (due_s, self.number))

    def catch_up(self, time_s: float) -> None:
        """Do what is due before a time."""
        self._alone_until_s = time_s
        while self.due_s < time_s:
            self.due_s, kind = self._life.send(self.due_s)
            self._rests = kind is None
        self._wait_until(self.due_s)

    def _note(self, finished: Sequence[Request]) -> None:
        self._agenda.ended.append(Ended(self._now_s, self.number, finished))

    def show(self, at_s: float) -> None:
        """Keep the metrics of a time up to which it has caught up."""
        self._shown = self._shown_before(at_s)

    def seen(self, at_s: float) -> Metrics:
        """The metrics of a time up to which it has caught up, as somebody else sees them."""
        return self._shown_before(at_s)

    def num_cached_blocks(self, request: Request) -> int:
        """Of one that comes now, before which it has caught up."""
        return self._num_cached_at(request.arrival_s, request)

    def metrics(self, at_s: float) -> Metrics:  # noqa: ARG002 - a replica's interface
        return self._shown


class ListenedReplicas:
    """All `replicas` that a router listens to, and what they showed at the last multiple of its scrape interval; `tell` tells it who has ended.

    Where they are the engines of a server, also what the first of them showed when the fleet's router `looks`.
    """

    def __init__(
        self,
        cores: Iterable[tuple[Core, int]],
        tell: Tell,
        scrape_interval_s: float | None,
        looks: Ticks | None = None,
    ) -> None:
        """Of engines and the numbers of their pools."""
        self._agenda = Agenda([], [])
        self.replicas = [ListenedReplica(core, number, pool, self._agenda) for number, (core, pool) in enumerate(cores)]
        self._tell = tell
        self._scrapes = None if scrape_interval_s is None else Ticks(scrape_interval_s)
        self._looks = looks
        self._seen = NOTHING_SHOWN

    def catch_up(self, now_s: float) -> None:
        """A request comes: do what is due before."""
        looks = self._looks
        if looks is not None and looks.passed(now_s):
            self._show_until(looks.last_s)
            self._seen = self.replicas[0].seen(looks.last_s)
        self._show_until(now_s)

    def seen(self, engine: int) -> Metrics:  # noqa: ARG002 - of several engines the first is looked at
        return self._seen

    def _show_until(self, now_s: float) -> None:
        """Catch up, and keep what was shown at the last scrape before."""
        scrapes = self._scrapes
        if scrapes is not None and scrapes.passed(now_s):
            self._catch_up(scrapes.last_s)
            for replica in self.replicas:
                replica.show(scrapes.last_s)
        self._catch_up(now_s)

    def finish(self) -> None:
        """No more requests will come."""
        self._catch_up(math.inf)

    def _catch_up(self, time_s: float) -> None:
        """Whoever is due before a time does what is due, and the router is told who has ended."""
        due, ended = self._agenda
        while due and due[0][0] < time_s:
            due_s, number = heappop(due)
            replica = self.replicas[number]
            if replica.due_s == due_s:
                replica.catch_up(time_s)
        if len(ended) > 1:
            ended.sort(key=_when)
        for _, number, requests in ended:
            self._tell(number, requests)
        ended.clear()


def _when(ended: Ended) -> tuple[float, int]:
    return ended[:2]
