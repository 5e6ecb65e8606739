"""Data-parallel ranks of a mixture of experts: they step together, and whoever has no work runs a dummy batch.

Mirrors vLLM's DPEngineCoreProc and its coordinator (v1/engine/core.py, coordinator.py, 0.32). A wave of steps begins with a
request; now and then the ranks look at each other, and it ends if none has work left. Deliberate differences: all ranks schedule
a step at the same instant, where vLLM's idle ranks commit themselves to a dummy batch a little before, and the coordinator's
messages take no time.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import simpy

from sim.cluster.arrivals import Process
from sim.cluster.clock import ANSWER, PASS, At, last_multiple
from sim.cluster.rank_log import RankLog
from sim.cluster.rank_records import RankRecords
from sim.cluster.replica import NOTHING_SHOWN, Core
from sim.engine.core import DecodesAhead, Plan
from sim.engine.leaps import Leap, end_s, num_launched_before
from sim.engine.metrics import Metrics
from sim.engine.rank_steps import Lane, RankSteps, dummy_batch
from sim.engine.request import Request
from sim.steptime.graphs import GraphDispatch
from sim.steptime.protocol import Agreement, StepShape, StepTimeModel

Listener = Callable[[int, Sequence[Request]], None]


@dataclass(frozen=True, slots=True)
class LockStepRules:
    """Ranks look at each other after every `sync_interval`-th step of a wave, and after the first if `looks_at_once`.

    With a `prefill_interval` above 1, prefills may begin or go on in every so many-th step of a wave alone. `dispatch` is that
    of step times which know of other ranks; a dummy batch has `num_drafts`.
    """

    sync_interval: int = 16
    looks_at_once: bool = True
    prefill_interval: int = 1
    dispatch: GraphDispatch | None = None
    num_drafts: int = 0


class RankCore(Core, Protocol):
    """What a rank's engine is told besides: which pass to schedule, and when it begins and ends for all ranks."""

    @property
    def has_requests(self) -> bool: ...
    @property
    def decodes(self) -> DecodesAhead | None: ...
    def leap(self, leap: Leap, num_passes: int) -> Sequence[Request]: ...
    def schedule(self, now_s: float, *, is_throttled: bool = False) -> StepShape | None: ...
    def run(self, start_s: float, duration_s: float) -> bool: ...


class Rank:
    """A rank as routers see it: a Replica of the only pool. Requests lie in its inbox until the next step."""

    pool: int = 0

    def __init__(self, ranks: "LockStep", core: RankCore, number: int) -> None:
        self.number = number
        self.core = core
        self.inbox: list[Request] = []
        self.shown = NOTHING_SHOWN
        self._ranks = ranks

    def submit(self, request: Request) -> None:
        self._ranks.show()
        self.inbox.append(request)
        self._ranks.wake()

    @property
    def load(self) -> tuple[int, int]:
        waiting, running = self.core.load
        return waiting + len(self.inbox), running

    def metrics(self, at_s: float) -> Metrics:
        self._ranks.show()
        assert at_s == self._ranks.shown_at_s, "metrics are those of the last scrape"
        return self.shown

    def num_cached_blocks(self, request: Request) -> int:
        return self.core.num_cached_blocks(request)

    def num_offloaded_blocks(self, request: Request, num_cached_blocks: int) -> int:
        return self.core.num_offloaded_blocks(request, num_cached_blocks)

    @property
    def is_idle(self) -> bool:
        return not (self.core.has_requests or self.core.num_in_flight)


class StepsAhead(NamedTuple):
    """The first `num_passes` of a leap, which are certain unless a request arrives; by rank, None where it idles.

    At `end_s` the last step that comes back during them is back; no request finishes before.
    """

    leap: Leap
    num_passes: int
    end_s: float
    shapes: tuple[StepShape | None, ...]
    agreement: Agreement | None
    lanes: tuple[Lane, ...]


class LockStep:
    """All ranks as one process. `num_passes` counts the steps of the present wave; while it `is_paused` none is under way.

    Invariants: of the steps launched those that end at `_ends_s` have not come back, `_most_in_flight` or fewer; `_now_s` is the time of the next one.
    While `_plan` is set, the process sleeps until the plan's end; a request cuts it to the steps that have begun.
    """

    def __init__(
        self,
        env: simpy.Environment,
        cores: Sequence[RankCore],
        step_time: StepTimeModel,
        rules: LockStepRules,
        on_finished: Listener,
        *,
        num_batches_in_flight: int,
        scrape_interval_s: float | None = None,
        log: RankLog | None = None,
    ) -> None:
        self.ranks = [Rank(self, core, number) for number, core in enumerate(cores)]
        self.records = RankRecords(len(cores))
        self.num_passes = 0
        self.is_paused = True
        self.shown_at_s = -math.inf
        self._env = env
        self._rules = rules
        self._steps = RankSteps(step_time, rules.dispatch, dummy_batch(rules.num_drafts))
        self._on_finished = on_finished
        self._most_in_flight = num_batches_in_flight
        self._scrape_interval_s = scrape_interval_s
        self._log = log
        self._ends_s: list[float] = []
        self._now_s = self._device_free_s = env.now
        self._plan: StepsAhead | None = None
        self._is_woken = False
        self._idle = env.event()
        self._process = env.process(self._serve())

    # -- as requests come ------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Let the steps that have not begun see what has come."""
        if self._plan is not None and not self._is_woken:
            if self._num_begun(self._plan) < self._plan.num_passes:
                self._is_woken = True
                self._process.interrupt()
        elif not self._idle.triggered:
            self._idle.succeed()

    def show(self) -> None:
        """Keep every rank's metrics of the last multiple of the scrape interval, if nothing has changed since."""
        if self._scrape_interval_s is None:
            return
        at_s = last_multiple(self._env.now, self._scrape_interval_s)
        if at_s > self.shown_at_s:
            self.shown_at_s = at_s
            for rank in self.ranks:
                shown = self.metrics_before(rank, at_s)
                rank.shown = shown._replace(num_waiting=shown.num_waiting + len(rank.inbox))

    def metrics_before(self, rank: Rank, time_s: float) -> Metrics:
        """What a rank showed just before a time since which nothing has changed but by plan; its inbox is not counted."""
        plan = self._plan
        if plan is None or plan.shapes[rank.number] is None:
            return rank.core.metrics_before(time_s)
        return rank.core.metrics_within(Plan(plan.leap, plan.num_passes, 0, plan.end_s), time_s)

    # -- the process -----------------------------------------------------------------------------------------------

    def _serve(self) -> Process:
        env = self._env
        while True:
            if self.is_paused:
                yield from self._sleep()
            if self._now_s > env.now or env.peek() <= env.now:  # else no request can arrive before the step
                yield At(env, max(env.now, self._now_s), PASS)
            self.show()
            self._open_inboxes()
            self._plan = self._steps_ahead()
            if self._plan is not None:
                yield from self._leap(self._plan)
            elif self._launch() and len(self._ends_s) == self._most_in_flight:
                yield At(env, self._ends_s[0], ANSWER)
                self.show()
                self._collect()
            self._look()

    def _sleep(self) -> Process:
        """Until a request comes, with which a wave begins."""
        if not any(rank.inbox for rank in self.ranks):
            self._idle = self._env.event()
            yield self._idle
        self.is_paused = False
        self._now_s = max(self._now_s, self._env.now)

    def _open_inboxes(self) -> None:
        for rank in self.ranks:
            for request in rank.inbox:
                rank.core.add_request(request)
            rank.inbox.clear()

    def _look(self) -> None:
        """End the wave if it is time to look, and nobody has work."""
        rules = self._rules
        looks = self.num_passes % rules.sync_interval == 0 or (self.num_passes == 1 and rules.looks_at_once)
        if looks and not any(rank.core.has_requests for rank in self.ranks):
            self._pause()
            self.num_passes = 0
            self.records.num_waves += 1

    def _pause(self) -> None:
        """Steps in flight are dummies, which nobody waits for."""
        self.is_paused = True
        self._ends_s.clear()

    # -- step by step ----------------------------------------------------------------------------------------------

    def _launch(self) -> bool:
        """Have all ranks begin a step; False if none of them can do anything, nor will before a request comes."""
        is_throttled = self.num_passes % self._rules.prefill_interval != 0
        cores = [rank.core for rank in self.ranks]
        found = [core.schedule(self._now_s, is_throttled=is_throttled) for core in cores]
        shapes = [shape or self._steps.dummy for shape in found]
        agreement = self._steps.agreement(shapes)
        own_s = self._steps.seconds(shapes, agreement)
        start_s, duration_s = max(self._now_s, self._device_free_s), max(own_s)
        ran = [core.run(start_s, duration_s) for core in cores]
        if self._is_stuck:
            self._pause()
            return False
        self.records.step(found, agreement, own_s, duration_s)
        self._device_free_s = start_s + duration_s
        if self._log:
            self._log.steps(self._place, ran, self._now_s, start_s, self._device_free_s)
        self._ends_s.append(self._device_free_s)
        self.num_passes += 1
        return True

    @property
    def _place(self) -> tuple[int, int]:
        """The number of the wave, and of its next step."""
        return self.records.num_waves, self.num_passes

    @property
    def _is_stuck(self) -> bool:
        """Somebody waits, and nobody runs: vLLM runs dummies until something comes."""
        cores = [rank.core for rank in self.ranks]
        return any(core.has_requests for core in cores) and not any(core.num_in_flight for core in cores)

    def _collect(self) -> None:
        """The oldest step in flight is back: take in what the ranks had in it."""
        self._now_s = self._ends_s.pop(0)
        for rank in self.ranks:
            if rank.core.num_in_flight and rank.core.next_collect_s <= self._now_s:
                self._tell(rank, rank.core.collect())

    def _tell(self, rank: Rank, finished: Sequence[Request]) -> None:
        if finished:
            self._on_finished(rank.number, finished)

    # -- many steps at once ----------------------------------------------------------------------------------------

    def _steps_ahead(self) -> StepsAhead | None:
        """The next steps in which every rank only decodes, or idles, up to the first after which a request may finish."""
        if len(self._ends_s) + 1 < self._most_in_flight:
            return None
        are_idle = [rank.is_idle for rank in self.ranks]
        shapes: list[StepShape | None] = []
        num_passes = self._num_before_look if all(are_idle) else math.inf
        for rank, is_idle in zip(self.ranks, are_idle, strict=True):
            decodes = None if is_idle else rank.core.decodes
            if decodes is None and not is_idle:
                return None
            shapes.append(_shape(decodes) if decodes else None)
            num_passes = min(num_passes, decodes.num_passes) if decodes else num_passes
        computed = [shape or self._steps.dummy for shape in shapes]
        agreement = self._steps.agreement(computed)
        lanes = self._steps.lanes(computed, are_idle, agreement)
        start_s = max(self._now_s, self._device_free_s)
        leap = self._steps.leap(lanes, agreement, int(num_passes), start_s)
        ended_s = self._ended_s(leap, leap.num_steps)
        return StepsAhead(leap, leap.num_steps, ended_s, tuple(shapes), agreement, tuple(lanes))

    @property
    def _num_before_look(self) -> int:
        """Steps of ranks that all idle until they look at each other."""
        interval = self._rules.sync_interval
        return 1 if self.num_passes == 0 else interval - self.num_passes % interval

    def _ended_s(self, leap: Leap, num_passes: int) -> float:
        """When the last step comes back of those that do during a plan of so many."""
        return end_s(leap, num_passes + 1 - self._most_in_flight)

    def _num_begun(self, plan: StepsAhead) -> int:
        """Of the planned steps, at least one."""
        return min(plan.num_passes, num_launched_before(plan.leap, self._env.now, self._most_in_flight))

    def _leap(self, plan: StepsAhead) -> Process:
        """Sleep until the plan is done, or what had begun of it when a request came."""
        try:
            yield At(self._env, plan.end_s, ANSWER)
        except simpy.Interrupt:
            num_begun = self._num_begun(plan)
            plan = self._plan = plan._replace(num_passes=num_begun, end_s=self._ended_s(plan.leap, num_begun))
            yield At(self._env, plan.end_s, ANSWER)
        self.show()
        self._plan, self._is_woken = None, False
        self._commit(plan)

    def _commit(self, plan: StepsAhead) -> None:
        """Do the planned steps."""
        leap, num_passes = plan.leap, plan.num_passes
        self.records.leap(plan.shapes, plan.agreement, plan.lanes, leap, num_passes)
        if self._log:
            self._log_plan(self._log, plan)
        self.num_passes += num_passes
        self._device_free_s = end_s(leap, num_passes)
        self._ends_s = [end_s(leap, number + 1) for number in range(num_passes + 1 - self._most_in_flight, num_passes)]
        self._now_s = plan.end_s
        for rank, shape in zip(self.ranks, plan.shapes, strict=True):
            if shape is not None:
                self._tell(rank, rank.core.leap(leap, num_passes))

    def _log_plan(self, log: RankLog, plan: StepsAhead) -> None:
        wave, step = self._place
        ran = [shape is not None for shape in plan.shapes]
        now_s, start_s = self._now_s, plan.leap.start_s
        for number in range(plan.num_passes):
            ended_s = end_s(plan.leap, number + 1)
            log.steps((wave, step + number), ran, now_s, start_s, ended_s)
            now_s, start_s = start_s if self._most_in_flight > 1 else ended_s, ended_s


def _shape(decodes: DecodesAhead) -> StepShape:
    return StepShape(decodes.num_decodes, decodes.context_tokens, (), decodes.num_decodes)
