"""Replicas that only a router listens to: it acts on what it hears when a request comes, and so they catch up then.

They follow the same course as replicas that are processes (replica.py), and the router hears of the same ends before it chooses. Time is
that of the arrivals, a process on SimPy's clock; a heap of times only spares a look at those that have nothing to do by then.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush

from sim.cluster.course import SOMEBODY_COMES, Course
from sim.engine.balancer import Balancers
from sim.engine.driven import Core
from sim.engine.metrics import NOTHING_SHOWN, Metrics
from sim.engine.request import Request
from sim.engine.ticks import Ticks, ticks

Tell = Callable[[int, Sequence[Request]], None]
"""Told of requests that a replica has finished."""
Ended = tuple[float, int, Sequence[Request]]
"""When, the replica, and the requests that it has finished."""


class Agenda:
    """What replicas have in common: a heap of when which of them may be `due`, and what has `ended` since the router was told."""

    def __init__(self) -> None:
        self.due: list[tuple[float, int]] = []
        self.ended: list[Ended] = []


class ListenedReplica(Course):
    """A Replica that begins with the first request."""

    def __init__(self, core: Core, number: int, pool: int, agenda: Agenda) -> None:
        super().__init__(core, number)
        self.pool = pool
        self._agenda = agenda
        self._shown = NOTHING_SHOWN
        self._await(SOMEBODY_COMES, math.inf)

    def submit(self, *answers: Request) -> None:
        self.take(answers)

    def take(self, answers: Sequence[Request]) -> None:
        """The same, of compiled code."""
        now_s = answers[0].arrival_s
        self.inbox += answers
        if self.rests:
            self.due_s = now_s
            self._is_due()
        elif self.cut(now_s):
            self._is_due()

    def _is_due(self) -> None:
        if self.due_s < math.inf:
            heappush(self._agenda.due, (self.due_s, self.number))

    def catch_up(self, time_s: float) -> None:
        """Do what is due before a time."""
        while self.due_s < time_s:
            self.go_on(self.due_s)
        self._is_due()

    def tell(self, finished: Sequence[Request], at_s: float) -> None:
        self._agenda.ended.append((at_s, self.number, finished))

    def show(self, at_s: float) -> None:
        """Keep the metrics of a time up to which it has caught up."""
        self._shown = self.metrics_before(at_s)

    def metrics(self, at_s: float) -> Metrics:  # noqa: ARG002 - a replica's interface
        return self._shown

    def num_cached_blocks(self, request: Request) -> int:
        """Of one that comes now, before which it has caught up."""
        return self.num_cached_at(request.arrival_s, request)

    def num_offloaded_blocks(self, request: Request, num_cached_blocks: int) -> int:
        return self.core.num_offloaded_blocks(request, num_cached_blocks)


class ListenedReplicas:
    """All `replicas` that a router listens to, and what they showed at the last multiple of its scrape interval; `tell` tells it who has ended.

    Where they are the engines of a server, also what some showed, the `fronts` of its addresses, when the fleet's router `looks`.
    """

    def __init__(
        self,
        cores: Iterable[tuple[Core, int]],
        tell: Tell,
        scrape_interval_s: float | None,
        looks: Ticks | None = None,
        fronts: Sequence[int] = (),
    ) -> None:
        """Of engines and the numbers of their pools."""
        self._agenda = Agenda()
        self.replicas = [ListenedReplica(core, number, pool, self._agenda) for number, (core, pool) in enumerate(cores)]
        self._tell = tell
        self._scrapes = ticks(scrape_interval_s)
        self._looks = looks
        self._seen = dict.fromkeys(fronts, NOTHING_SHOWN)

    def catch_up(self, now_s: float) -> None:
        """A request comes: do what is due before."""
        looks = self._looks
        if looks is not None and looks.passed(now_s):
            self._tell_of(self._show_until(looks.last_s))
            for front in self._seen:
                self._seen[front] = self.replicas[front].metrics_before(looks.last_s)
        self._tell_of(self._show_until(now_s))

    def serve(self, answers: Sequence[Request], balancers: Balancers) -> list[Ended]:
        """Requests come: catch up, tell the balancers, and give each to the replica that they choose; who has ended by now and was not told of."""
        now_s = answers[0].arrival_s
        ended = self._show_until(now_s)
        for _, number, requests in ended:
            for request in requests:
                balancers.answered(request, number)
        if balancers.updates.passed(now_s):
            balancers.update_all([replica.metrics(now_s) for replica in self.replicas])
        for request in answers:
            self.replicas[balancers.choose(request)].take((request,))
        return ended

    def seen(self, front: int) -> Metrics:
        """What the first engine of an address showed when the fleet's router looked last."""
        return self._seen[front]

    def finish(self) -> None:
        """No more requests will come."""
        self._catch_up(math.inf)
        self._tell_of(self._ended())

    def _tell_of(self, ended: list[Ended]) -> None:
        for _, number, requests in ended:
            self._tell(number, requests)

    def _show_until(self, now_s: float) -> list[Ended]:
        """Catch up, and keep what was shown at the last scrape before; who has ended since this was asked last."""
        scrapes = self._scrapes
        if scrapes is not None and scrapes.passed(now_s):
            self._catch_up(scrapes.last_s)
            for replica in self.replicas:
                replica.show(scrapes.last_s)
        self._catch_up(now_s)
        return self._ended()

    def _catch_up(self, time_s: float) -> None:
        """Whoever is due before a time does what is due."""
        due = self._agenda.due
        while due and due[0][0] < time_s:
            due_s, number = heappop(due)
            replica = self.replicas[number]
            if replica.due_s == due_s:
                replica.catch_up(time_s)

    def _ended(self) -> list[Ended]:
        """Who has ended since this was asked last, in order of time."""
        ended, self._agenda.ended = self._agenda.ended, []
        if len(ended) > 1:
            ended.sort(key=_when)
        return ended


def _when(ended: Ended) -> tuple[float, int]:
    return ended[0], ended[1]
