"""Replicas: one advances its engine only when it is called, the other runs as a process and reports requests that finish.

Both do the same passes at the same times. If no client or router waits for answers, nothing depends on when requests end,
and a replica needs no events. If a router alone does, see sim/cluster/listened.py.
"""

import math
from collections.abc import Callable, Generator, Sequence
from typing import Protocol, Self

import simpy
from simpy.events import NORMAL, EventPriority

from sim.cluster.arrivals import Process
from sim.cluster.clock import ANSWER, PASS, At, at_replica, call_at
from sim.cluster.endless import check_holds_nobody
from sim.engine.core import Abort
from sim.engine.metrics import NOTHING_SHOWN, Metrics, with_waiting
from sim.engine.plans import Plan
from sim.engine.records import EngineRecords
from sim.engine.request import Request
from sim.engine.ticks import Ticks
from sim.steptime.protocol import StepTimeModel

Listener = Callable[[Sequence[Request]], None]
Course = Generator[tuple[float, EventPriority | None], float, None]
"""What a replica does, one thing after the other. Before each it yields the time and what kind of event it is, or None where it does nothing
unless something comes before; it is sent the time at which it goes on.
"""
HALT = "halt"
"""The cause of an interrupt that ends a replica's process; any other wakes it."""


class Core(Protocol):
    """An engine as a replica drives it: one that leaps (sim/engine/core.py) or one that walks (sim/engine/walking/core.py).

    Either it has a plan, which is committed as far as it has been carried out; or passes are launched while it says so, and
    their batches collected in due time.
    """

    now_s: float

    @property
    def num_in_flight(self) -> int: ...
    @property
    def load(self) -> tuple[int, int]: ...
    @property
    def next_collect_s(self) -> float: ...
    def add_request(self, request: Request) -> None: ...
    def abort(self, abort: Abort) -> None: ...
    def refuse(self, request: Request, reason: str) -> None: ...
    def end_aborted(self) -> None: ...
    def advance(self, until_s: float) -> None: ...
    def load_at(self, now_s: float) -> tuple[int, int]: ...
    def metrics_before(self, time_s: float) -> Metrics: ...
    def metrics_at(self, time_s: float) -> Metrics: ...
    def metrics_within(self, plan: Plan, time_s: float) -> Metrics: ...
    def num_cached_blocks(self, request: Request) -> int: ...
    def num_cached_within(self, plan: Plan, time_s: float, request: Request) -> int: ...
    def num_offloaded_blocks(self, request: Request, num_cached_blocks: int) -> int: ...
    def plan(self) -> Plan | None: ...
    def num_begun(self, plan: Plan, now_s: float) -> int: ...
    def cut(self, plan: Plan, now_s: float) -> Plan: ...
    def stop_within(self, plan: Plan, now_s: float) -> None: ...
    def halt(self) -> dict[Request, int]: ...
    def use(self, step_time: StepTimeModel) -> None: ...
    def commit(self, plan: Plan) -> Sequence[Request]: ...
    @property
    def quiet_until_s(self) -> float: ...
    def skip_calls(self, until_s: float) -> None: ...
    def launch(self) -> bool: ...
    def collect(self) -> Sequence[Request]: ...
    def records(self) -> EngineRecords: ...


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


class ReportingReplica:
    """An engine that reports requests that finish. What it does next and when is its course; whoever follows that lets the time pass.

    Invariants: while `_plan` is set, its passes are under way and not committed; what comes cuts it to those that have begun. As in vLLM, requests
    lie in an inbox until the next scheduling pass. Nothing comes before `_alone_until_s`: until then its course goes on by itself. What it tells
    happens at `_now_s`. As one of a server's it has another number in the fleet, by which errors call it.
    """

    def __init__(self, core: Core, number: int, pool: int, tell: Listener) -> None:
        self.number = self.number_in_fleet = number
        self.pool = pool
        self._core = core
        self._tell = tell
        self._shown = NOTHING_SHOWN
        self._inbox: list[Request] = []
        self._next_step_time: StepTimeModel | None = None
        self._plan: Plan | None = None
        self._alone_until_s = self._now_s = -math.inf

    def _course(self) -> Course:
        """All that it does, from its first pass on."""
        core, number = self._core, self.number_in_fleet
        back, called = at_replica(ANSWER, number), at_replica(PASS, number)
        now_s = yield core.now_s, called
        while True:
            self._see_what_came(now_s)
            finished: Sequence[Request] = ()
            plan = self._plan = core.plan()
            if plan is not None:
                if plan.end_s >= self._alone_until_s:
                    yield plan.end_s, back
                    plan = self._plan or plan  # it may have been cut
                self._plan, self._now_s = None, plan.end_s
                finished = core.commit(plan)
            elif core.launch():
                pass
            elif core.num_in_flight:
                self._now_s = core.next_collect_s
                if self._now_s >= self._alone_until_s:
                    yield self._now_s, back
                finished = core.collect()
            else:
                check_holds_nobody(core, self.number_in_fleet)
                yield math.inf, None
            if finished:
                self._tell(finished)
            if not self._inbox and core.quiet_until_s > core.now_s:
                core.skip_calls((yield core.quiet_until_s, None))
            now_s = core.now_s
            if now_s >= self._alone_until_s:
                now_s = yield now_s, called

    def _cut(self, now_s: float) -> Plan | None:
        """Something comes: what the plan comes to, if passes of it that have not begun are to see that."""
        plan, core = self._plan, self._core
        if plan is None or core.num_begun(plan, now_s) == plan.num_passes:
            return None
        self._plan = core.cut(plan, now_s)
        return self._plan

    @property
    def _num_unseen(self) -> int:
        """Requests that no pass has seen."""
        return len(self._inbox)

    @property
    def load(self) -> tuple[int, int]:
        waiting, running = self._core.load
        return waiting + self._num_unseen, running

    def _shown_before(self, time_s: float) -> Metrics:
        """The metrics just before a time since which nothing has changed but by the plan."""
        core, plan = self._core, self._plan
        shown = core.metrics_within(plan, time_s) if plan else core.metrics_before(time_s)
        return with_waiting(shown, self._num_unseen) if self._num_unseen else shown

    def _num_cached_at(self, now_s: float, request: Request) -> int:
        """Leading blocks of a request's prompt that it holds after the passes that have begun."""
        core, plan = self._core, self._plan
        return core.num_cached_within(plan, now_s, request) if plan else core.num_cached_blocks(request)

    def num_offloaded_blocks(self, request: Request, num_cached_blocks: int) -> int:
        return self._core.num_offloaded_blocks(request, num_cached_blocks)

    def _see_what_came(self, now_s: float) -> None:
        """Requests and aborts, and other step times, before the next pass."""
        if self._inbox:
            self._open_inbox(now_s)
        self._core.end_aborted()
        if self._next_step_time is not None:
            self._core.use(self._next_step_time)
            self._next_step_time = None

    def _open_inbox(self, now_s: float) -> None:
        core = self._core
        core.now_s = max(core.now_s, now_s)  # requests may have arrived elsewhere before
        for request in self._inbox:
            core.add_request(request)
        self._inbox.clear()


class LiveReplica(ReportingReplica):
    """An engine as a process, which follows its course event by event: it sleeps while its next passes are certain, and wakes on what comes.

    The metrics of the last multiple of the scrape interval are kept before anything changes.
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
        super().__init__(core, number, pool, on_finished)
        self._env = env
        self._scrapes = None if scrape_interval_s is None else Ticks(scrape_interval_s)
        self._idle = env.event()
        self._process = env.process(self._run())

    def submit(self, *answers: Request) -> None:
        self._show()
        self._inbox += answers
        self.wake()

    def abort(self, *answers: Request, reason: str) -> None:
        """End answers of a request that was submitted which have not come; they are recorded as failed, and come no more.

        One that no pass has seen leaves at once, any other before the next batch that comes back is taken in or before
        the next pass. A batch that comes back at this very instant is taken in first: if it brings the last token, the
        request is answered all the same.
        """
        self._show()
        for request in answers:
            if request in self._inbox:
                self._inbox.remove(request)
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
        if self._plan is not None:
            self._core.stop_within(self._plan, self._env.now)
        returned = self._core.halt() | dict.fromkeys(self._inbox, 0)
        self._inbox.clear()
        self._process.interrupt(HALT)
        return returned

    def use(self, step_time: StepTimeModel) -> None:
        """Steps of passes that have not begun take other times from now on."""
        self._show()
        self._next_step_time = step_time
        self.wake()

    def wake(self) -> None:
        """Let the passes that have not begun see what has come: a request, an abort, or KV from elsewhere."""
        if self._cut(self._env.now):
            self._process.interrupt()
        elif not self._idle.triggered:
            self._idle.succeed()

    def num_cached_blocks(self, request: Request) -> int:
        return self._num_cached_at(self._env.now, request)

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
        core, plan = self._core, self._plan
        shown = core.metrics_within(plan, self._env.now) if plan else core.metrics_before(math.inf)
        return with_waiting(shown, self._num_unseen) if self._num_unseen else shown

    def _show(self) -> None:
        """Keep the metrics of the last multiple of the interval, if nothing has changed since."""
        scrapes = self._scrapes
        if scrapes is not None and scrapes.passed(self._env.now):
            self._shown = self._shown_before(scrapes.last_s)

    def _run(self) -> Process:
        try:
            yield from self._follow_course()
        except simpy.Interrupt:  # halted
            self._plan = None

    def _follow_course(self) -> Process:
        env, course = self._env, self._course()
        yield self._idle
        at_s, kind = next(course)
        while True:
            now_s = env.now
            if kind is None:
                yield self._rest(at_s)
            elif kind < PASS or at_s > now_s or env.peek() <= now_s:  # else no request can arrive before the pass
                try:
                    yield At(env, max(now_s, at_s), kind)
                except simpy.Interrupt as interrupt:
                    if interrupt.cause is HALT:
                        raise
                    assert self._plan is not None, "it was cut"
                    yield At(env, self._plan.end_s, kind)
            self._show()
            at_s, kind = course.send(env.now)

    def _rest(self, until_s: float) -> simpy.Event:
        """Happens then, or when something comes."""
        self._idle = self._env.event()
        if until_s < math.inf:
            call_at(self._env, until_s, NORMAL, self.wake)
        return self._idle
