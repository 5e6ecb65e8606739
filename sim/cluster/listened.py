"""Replicas that only a router listens to: it acts on what it hears when a request comes, and so they catch up then.

They do the same passes at the same times as replicas that are processes (replica.py), and the router hears of the same ends before it
chooses. Time is that of the arrivals, a process on SimPy's clock; the agenda only spares a look at those that have nothing to do by then.
"""

import math
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from sim.cluster.clock import Ticks
from sim.cluster.gateway import Gateway
from sim.cluster.replica import Core, ReportingReplica
from sim.engine.metrics import Metrics
from sim.engine.request import Request


class Told(NamedTuple):
    """Requests that a replica has finished, and when."""

    at_s: float
    replica: int
    requests: Sequence[Request]


Agenda = list[tuple[float, int]]
"""A heap of times and of the replicas whose turn it may be then; where a request has come since, it is another time."""


class ListenedReplica(ReportingReplica):
    """What it does next happens at `due_s`: a plan is done, the batch is back that it waits for, or a pass comes. Then it stands on the agenda."""

    def __init__(self, core: Core, number: int, pool: int, agenda: Agenda) -> None:
        super().__init__(core, number, pool)
        self.due_s = math.inf
        self._agenda = agenda
        self._is_waiting = False
        self._asked_s = -math.inf

    def submit(self, *answers: Request) -> None:
        core, plan, now_s = self._core, self._plan, answers[0].arrival_s
        self._inbox += answers
        self._asked_s = now_s
        if plan is None:
            if not self._is_waiting:
                self._wait_until(max(core.now_s, now_s))
        elif core.num_begun(plan, now_s) < plan.num_passes:
            plan = self._plan = core.cut(plan, now_s)
            self._wait_until(plan.end_s)

    def _wait_until(self, due_s: float) -> None:
        self.due_s = due_s
        heappush(self._agenda, (due_s, self.number))

    def reach(self, time_s: float, told: list[Told]) -> None:
        """Do what happens before a time, and tell who has finished."""
        core = self._core
        while (at_s := self.due_s) < time_s:
            finished: Sequence[Request] = ()
            if self._plan is not None:
                finished = core.commit(self._plan)
                self._plan, self.due_s = None, core.now_s
            elif self._is_waiting:
                finished = core.collect()
                self._is_waiting, self.due_s = False, core.now_s
            elif not self._inbox and core.quiet_until_s > core.now_s:
                core.skip_calls(min(core.quiet_until_s, time_s))
                self.due_s = core.now_s
            else:
                self._pass()
            if finished:
                told.append(Told(at_s, self.number, finished))
        if at_s < math.inf:
            self._wait_until(at_s)

    def _pass(self) -> None:
        core = self._core
        if self._inbox:
            self._open_inbox(self._asked_s)
        plan = self._plan = core.plan()
        if plan is not None:
            self.due_s = plan.end_s
        elif core.launch():
            self.due_s = core.now_s
        elif core.num_in_flight:
            self._is_waiting, self.due_s = True, core.next_collect_s
        else:
            self.due_s = math.inf

    def show(self, at_s: float) -> None:
        """Keep the metrics of a time up to which it has done what happens."""
        self._shown = self._shown_before(at_s)

    def metrics(self, at_s: float) -> Metrics:  # noqa: ARG002 - a replica's interface
        return self._shown


class ListenedReplicas:
    """All `replicas` of a fleet, and what they showed at the last multiple of the router's scrape interval."""

    def __init__(self, cores: Iterable[tuple[Core, int]], gateway: Gateway) -> None:
        """Of engines and the numbers of their pools."""
        self._agenda: Agenda = []
        self.replicas = [ListenedReplica(core, number, pool, self._agenda) for number, (core, pool) in enumerate(cores)]
        self._gateway = gateway
        interval_s = gateway.router.scrape_interval_s
        self._scrapes = None if interval_s is None else Ticks(interval_s)

    def arrive(self, request: Request) -> None:
        """A request comes: route it by what is known."""
        self._show(request.arrival_s)
        self._reach(request.arrival_s)
        self._gateway.submit(request)

    def finish(self) -> None:
        """No more requests will come."""
        self._reach(math.inf)

    def _show(self, now_s: float) -> None:
        scrapes = self._scrapes
        if scrapes is not None and scrapes.passed(now_s):
            self._reach(scrapes.last_s)
            for replica in self.replicas:
                replica.show(scrapes.last_s)

    def _reach(self, time_s: float) -> None:
        told: list[Told] = []
        agenda = self._agenda
        while agenda and agenda[0][0] < time_s:
            due_s, number = heappop(agenda)
            replica = self.replicas[number]
            if replica.due_s == due_s:
                replica.reach(time_s, told)
        if len(told) > 1:
            told.sort(key=_when)
        for _, number, requests in told:
            self._gateway.answered(number, requests)


def _when(told: Told) -> tuple[float, int]:
    return told[:2]
