"""Replicas: one advances its engine only when it is called, the other runs as a process and reports requests that finish.

Both do the same passes at the same times. If no client or router waits for answers, nothing depends on when requests end,
and a replica needs no events. If a router alone does, see sim/cluster/listened.py; what both kinds that report do says course.py.
"""

import math
from collections.abc import Sequence
from typing import Protocol, Self

import simpy
from simpy.events import NORMAL

from sim.cluster.arrivals import Process
from sim.cluster.clock import ANSWER, PASS, At, at_replica, call_at
from sim.cluster.course import BATCH_IS_BACK, Listener, ToldCourse
from sim.engine.driven import Abort, Core
from sim.engine.metrics import NOTHING_SHOWN, Metrics, with_waiting
from sim.engine.request import Request
from sim.engine.ticks import ticks
from sim.steptime.protocol import StepTimeModel

HALT = "halt"
"""The cause of an interrupt that ends a replica's process; any other wakes it."""


class Replica(Protocol):
    """A replica's interface to the gateway and to routers; `pool` is the number of its pool."""

    number: int
    pool: int

    def submit(self, *answers: Request) -> None:
        """Submit a request that arrives now, each of its answers as one of its own; a scheduling pass at this instant sees it."""
        ...

    @property
    def load(self) -> tuple[int, int]:
        """Waiting requests (those that no pass has seen included) and running ones, after the batches that came back by now."""
        ...

    def metrics(self, at_s: float) -> Metrics:
        """The metrics just before a time: for a replica that reports answers, the last multiple of its scrape interval.

        For the other, any time that is not before its last call.
        """
        ...

    def num_cached_blocks(self, request: Request) -> int:
        """Leading blocks of a request's prompt that the replica holds now."""
        ...

    def num_offloaded_blocks(self, request: Request, num_cached_blocks: int) -> int:
        """Blocks behind these that it holds in host memory."""
        ...


class LazyReplica:
    """An engine whose answers no client or router waits for: it catches up when it is called."""

    def __init__(self, env: simpy.Environment, core: Core, number: int, pool: int) -> None:
        self.number = number
        self.pool = pool
        self.metrics = core.metrics_at
        self._env = env
        self.core = core

    def submit(self, *answers: Request) -> None:
        self.core.advance(answers[0].arrival_s)
        for request in answers:
            self.core.add_request(request)

    @property
    def load(self) -> tuple[int, int]:
        return self.core.load_at(self._env.now)

    def num_cached_blocks(self, request: Request) -> int:
        self.core.advance(self._env.now)
        return self.core.num_cached_blocks(request)

    def num_offloaded_blocks(self, request: Request, num_cached_blocks: int) -> int:
        return self.core.num_offloaded_blocks(request, num_cached_blocks)

    def finish(self) -> None:
        """No more requests will arrive: run until all have ended."""
        self.core.advance(math.inf)


class LiveReplica:
    """An engine as a process, which follows its course event by event: it sleeps while its next passes are certain, and wakes on what comes.

    The metrics of the last multiple of the scrape interval are kept before anything changes. As one of a server's it has another number in
    the fleet.
    """

    def __init__(
        self,
        env: simpy.Environment,
        core: Core,
        number: int,
        pool: int,
        on_finished: Listener,
        scrape_interval_s: float | None = None,
    ) -> None:
        self.number = self.number_in_fleet = number
        self.pool = pool
        self._env = env
        self._core = core
        self._course = ToldCourse(core, number, on_finished)
        self._shown = NOTHING_SHOWN
        self._scrapes = ticks(scrape_interval_s)
        self._idle = env.event()
        self._process = env.process(self._run())

    def submit(self, *answers: Request) -> None:
        self._show()
        self._course.inbox += answers
        self.wake()

    def abort(self, *answers: Request, reason: str) -> None:
        """End answers of a request that was submitted which have not come; they are recorded as failed, and come no more.

        One that no pass has seen leaves at once, any other before the next batch that comes back is taken in or before
        the next pass. A batch that comes back at this very instant is taken in first: if it brings the last token, the
        request is answered all the same.
        """
        self._show()
        inbox = self._course.inbox
        for request in answers:
            if request in inbox:
                inbox.remove(request)
                self._core.refuse(request, reason)
            else:
                self._core.abort(Abort(request, reason, self._env.now))
                self.wake()

    def refuse(self, answer: Request, reason: str) -> None:
        """Record one as failed that was not submitted."""
        self._core.refuse(answer, reason)

    def halt(self) -> dict[Request, int]:
        """The replica is lost now, and what is on its device never comes back: the tokens that each request has returned.

        Passes that have begun stay in its records; the requests are not recorded.
        """
        course = self._course
        if course.plan is not None:
            self._core.stop_within(course.plan, self._env.now)
        returned = self._core.halt() | dict.fromkeys(course.inbox, 0)
        course.inbox.clear()
        self._process.interrupt(HALT)
        return returned

    def use(self, step_time: StepTimeModel) -> None:
        """Steps of passes that have not begun take other times from now on."""
        self._show()
        self._course.next_step_time = step_time
        self.wake()

    def wake(self) -> None:
        """Let the passes that have not begun see what has come: a request, an abort, or KV from elsewhere."""
        if self._course.cut(self._env.now):
            self._process.interrupt()
        elif not self._idle.triggered:
            self._idle.succeed()

    def num_cached_blocks(self, request: Request) -> int:
        return self._course.num_cached_at(self._env.now, request)

    def num_offloaded_blocks(self, request: Request, num_cached_blocks: int) -> int:
        return self._core.num_offloaded_blocks(request, num_cached_blocks)

    @property
    def load(self) -> tuple[int, int]:
        waiting, running = self._course.load
        return waiting + self._num_undecided, running

    @property
    def _num_undecided(self) -> int:
        """Requests that arrive now and may yet be turned away."""
        return 0

    def metrics(self, at_s: float) -> Metrics:
        self._show()
        assert self._scrapes is not None, "a router scrapes"
        assert at_s == self._scrapes.last_s, "metrics are those of the last scrape"
        return self._shown

    @property
    def at_addresses(self) -> Sequence[Self]:
        """Itself."""
        return (self,)

    def replica_of(self, answer: Request) -> int:  # noqa: ARG002 - of a server's replicas it would be one of several
        return self.number_in_fleet

    @property
    def engines_now(self) -> Sequence[Metrics]:
        return (self.metrics_now,)

    @property
    def metrics_now(self) -> Metrics:
        """The metrics after all that has come back by now and before the passes of this instant."""
        return self._shown_before(math.inf if self._course.plan is None else self._env.now)

    def _shown_before(self, time_s: float) -> Metrics:
        """The metrics just before a time since which nothing has changed but by the plan."""
        shown = self._course.metrics_before(time_s)
        return with_waiting(shown, self._num_undecided) if self._num_undecided else shown

    def _show(self) -> None:
        """Keep the metrics of the last multiple of the interval, if nothing has changed since."""
        scrapes = self._scrapes
        if scrapes is not None and scrapes.passed(self._env.now):
            self._shown = self._shown_before(scrapes.last_s)

    def _run(self) -> Process:
        try:
            yield from self._follow_course()
        except simpy.Interrupt:  # halted
            self._course.plan = None

    def _follow_course(self) -> Process:
        env, course = self._env, self._course
        course.number = self.number_in_fleet
        back, called = at_replica(ANSWER, course.number), at_replica(PASS, course.number)
        yield self._idle
        while True:
            now_s, at_s, is_back = env.now, course.due_s, course.awaits == BATCH_IS_BACK
            if course.rests:
                yield self._rest(at_s)
            elif is_back or at_s > now_s or env.peek() <= now_s:  # else no request can arrive before the pass
                kind = back if is_back else called
                try:
                    yield At(env, max(now_s, at_s), kind)
                except simpy.Interrupt as interrupt:
                    if interrupt.cause is HALT:
                        raise
                    yield At(env, course.due_s, kind)  # it was cut
            self._show()
            course.go_on(env.now)

    def _rest(self, until_s: float) -> simpy.Event:
        """Happens then, or when something comes."""
        self._idle = self._env.event()
        if until_s < math.inf:
            call_at(self._env, until_s, NORMAL, self.wake)
        return self._idle
