"""Data-parallel ranks with pipeline stages, which step together stage by stage. It is told the time.

Mirrors DPEngineCoreProc.run_busy_loop and step_with_batch_queue (v1/engine/core.py of vLLM 0.32), which each rank goes round by itself:

* Once round is a *step* of a rank: a batch, or, where its scheduler gave none, a dummy batch, launched behind the nap that follows such a call.
  Ranks that have several batches in flight are ahead of others by as many steps.
* The workers of one stage meet those of the same stage of all other ranks before a step (v1/worker/gpu/dp_utils.py) and at its experts, so that a stage
  begins a step when all ranks have launched it, the stage is free, and what the stage before sent has come to all; it takes as long as the slowest rank.
  A dummy batch runs on all stages, and no stage of it waits for another (`_dummy_run`).
* A rank that has launched a dummy batch waits for the last stage's worker to answer (`collective_rpc`, in order): for all ranks to have launched the step, and
  for its own batches before it. Without async scheduling that worker waits for each batch's tokens itself, and so for those of all ranks.
* Ranks look at each other as those without stages do, for which each waits at the same step (sim/engine/rank_group.py).

Deliberate differences: no rank's first layer begins before all ranks can begin the step; what hosts do between two launches takes no time; older
versions are taken to do as 0.32 does.
"""

from collections.abc import Sequence
from math import inf

from sim.engine.metrics import NOTHING_SHOWN, Metrics, with_waiting
from sim.engine.rank_group import Finished, LockStepRules, RankLogger
from sim.engine.rank_records import RankRecords
from sim.engine.request import Request
from sim.engine.staged_leap import StagedLeaps
from sim.engine.staged_loop import BACK, CALL, DUMMY, LOOK, Loop
from sim.engine.staged_times import DUMMY_BATCH, StagedTimes
from sim.engine.ticks import ticks
from sim.engine.walking.staged_rank import StagedRank
from sim.steptime.protocol import StepShape, StepTimeModel, num_tokens_of


class Step:
    """What ranks have launched for a step by `met_s`, None for dummies, and when each did."""

    __slots__ = ("launched_s", "met_s", "num_launched", "shapes")

    def __init__(self, num_ranks: int) -> None:
        self.shapes: list[StepShape | None] = [None] * num_ranks
        self.launched_s = [0.0] * num_ranks
        self.num_launched = 0
        self.met_s = -inf


class StagedGroup:
    """All ranks. While it `is_paused` none does anything; else one does what is next.

    Invariants: `_launched` are the steps from `_num_run` of the wave on, which some ranks have launched and not all; stage by stage the
    device is free from `_free_s` on. The last tokens of any rank were sampled at `_tokens_s`. Each rank's metrics were `shown` at the last scrape.
    """

    def __init__(
        self,
        cores: Sequence[StagedRank],
        step_time: StepTimeModel,
        rules: LockStepRules,
        *,
        num_stages: int,
        is_async: bool,
        start_s: float,
        scrape_interval_s: float | None = None,
        log: RankLogger | None = None,
    ) -> None:
        assert rules.dbo is None, "stages split no steps"
        self.loops = [Loop(core, number, start_s) for number, core in enumerate(cores)]
        self.records = RankRecords(len(self.loops))
        self.is_paused = True
        self._times = StagedTimes(step_time, rules.dispatch, num_stages)
        self._rules = rules
        self._is_async = is_async
        self._log = log
        self._free_s = [start_s] * num_stages
        self._tokens_s = start_s
        self._leaps = StagedLeaps(self._times, rules, self.records, is_async=is_async)
        self._launched: list[Step] = []
        self._num_run = 0
        self._num_vain = 0
        self._most_vain = 2 * (num_stages + 1) + rules.prefill_interval
        self.shown = [NOTHING_SHOWN] * len(self.loops)
        self._scrapes = ticks(scrape_interval_s)

    # -- the loop of a rank ----------------------------------------------------------------------------------------

    @property
    def following(self) -> Loop:
        """The rank that does something next: of those at one instant the first whose batch is back, else the first."""
        found = self.loops[0]
        for loop in self.loops:
            if loop.at_s < found.at_s or (loop.at_s == found.at_s and loop.next < found.next):
                found = loop
        return found

    def take(self, rank: int, requests: Sequence[Request], now_s: float) -> None:
        """Requests come to a rank, which sees them with its next call; if all paused, a wave begins."""
        self.loops[rank].inbox += requests
        if self.is_paused:
            self._begin(now_s)

    def _begin(self, now_s: float) -> None:
        self.is_paused = False
        self._num_vain = 0
        for loop in self.loops:
            loop.at_s = max(loop.at_s, now_s)

    def act(self, loop: Loop) -> Sequence[Request]:
        """Have a rank do what it does next; the requests that it has finished."""
        finished: Sequence[Request] = ()
        if loop.next == BACK:
            finished = loop.core.take_back(loop.at_s)
            self._end_call(loop)
        else:
            self._call(loop)
        return finished

    def _call(self, loop: Loop) -> None:
        core = loop.core
        if loop.inbox:
            self._num_vain = 0
            for request in loop.inbox:
                core.add_request(request)
            loop.inbox.clear()
        shape = core.schedule(loop.at_s, is_throttled=loop.step % self._rules.prefill_interval != 0)
        loop.was_launched = shape is not None
        if shape is not None:
            self._launch(loop, shape, loop.at_s)
        if core.awaits_oldest:
            loop.next = BACK
            loop.since_s = loop.at_s
            loop.at_s = max(loop.since_s, core.next_collect_s)
        else:
            self._end_call(loop)

    def _end_call(self, loop: Loop) -> None:
        """Who has launched no batch rests, and launches a dummy."""
        core = loop.core
        loop.had_requests = core.has_requests
        if loop.was_launched:
            self._end_step(loop)
            return
        loop.next = DUMMY
        loop.since_s = loop.at_s + core.idle_sleep_s if core.has_work else loop.at_s
        loop.at_s = inf
        self._launch(loop, None, loop.since_s)

    def _end_step(self, loop: Loop) -> None:
        """On to the next step, unless all look at each other before."""
        rules = self._rules
        loop.step += 1
        if loop.step % rules.sync_interval and (loop.step > 1 or not rules.looks_at_once):
            loop.next = CALL
            return
        loop.next = LOOK
        loop.since_s, loop.at_s = loop.at_s, inf
        for other in self.loops:
            if other.next != LOOK:
                return
        self._look()

    def _look(self) -> None:
        """All have come to it: the wave ends where nobody had requests."""
        now_s, goes_on = -inf, False
        for loop in self.loops:
            now_s = max(now_s, loop.since_s)
            goes_on = goes_on or loop.had_requests
        for loop in self.loops:
            loop.next, loop.at_s = CALL, now_s
        if not goes_on:
            self._pause(now_s)
            self.records.num_waves += 1
            for loop in self.loops:
                if loop.inbox:
                    self._begin(now_s)

    def _pause(self, now_s: float) -> None:
        self.is_paused = True
        self._launched.clear()
        self._num_run = 0
        for loop in self.loops:
            loop.core.pause(now_s)
            loop.next, loop.at_s, loop.step = CALL, now_s, 0

    # -- steps of all ranks ----------------------------------------------------------------------------------------

    def _launch(self, loop: Loop, shape: StepShape | None, at_s: float) -> None:
        """A rank launches its part of a step, which runs when all have."""
        place = loop.step - self._num_run
        if place == len(self._launched):
            self._launched.append(Step(len(self.loops)))
        step = self._launched[place]
        step.shapes[loop.number] = shape
        step.launched_s[loop.number] = at_s
        step.num_launched += 1
        step.met_s = max(step.met_s, at_s)
        if step.num_launched == len(self.loops):
            self._run(self._launched.pop(0))

    def _run(self, step: Step) -> None:
        """All have launched it; whoever waits for it hears when it is over."""
        stages_s = self._stages_s(step)
        if self._log is not None:
            place = (self.records.num_waves, self._num_run)
            ran = [shape is not None for shape in step.shapes]
            self._log.steps(place, ran, step.launched_s, stages_s[0][0], stages_s[-1][1])
        answers_s = max(step.met_s, self._tokens_s)
        self._num_run += 1
        self._num_vain += 1
        for loop in self.loops:
            if step.shapes[loop.number] is not None:
                self._num_vain = 0
                self._tokens_s = stages_s[-1][1]
                loop.core.run_stages(stages_s)
        for loop in self.loops:
            if loop.next == DUMMY and loop.step < self._num_run:
                own_s = max(step.met_s, loop.core.last_end_s)
                loop.at_s = own_s if self._is_async else answers_s
                self._end_step(loop)
            elif loop.next == BACK:
                loop.at_s = max(loop.since_s, loop.core.next_collect_s)
        if self._num_vain > self._most_vain and not self.is_paused:
            self._rest_if_stuck(stages_s[-1][1])

    def _stages_s(self, step: Step) -> list[tuple[float, float]]:
        """When each stage begins and ends it."""
        shapes = [shape or DUMMY_BATCH for shape in step.shapes]
        agreement = self._times.agreement(shapes)
        counts = [0 if shape is None else num_tokens_of(shape) for shape in step.shapes]
        self.records.count(counts, agreement)
        ready_s = step.met_s
        for loop in self.loops:
            if step.shapes[loop.number] is not None:
                ready_s = max(ready_s, loop.core.fed_s)
        found: list[tuple[float, float]] = []
        for stage, free_s in enumerate(self._free_s):
            seconds = [self._times.stage_s(stage, shape, agreement) for shape in shapes]
            begun_s, duration_s = max(ready_s, free_s), max(seconds)
            ended_s = self._free_s[stage] = begun_s + duration_s
            self.records.last(seconds, duration_s)
            found.append((begun_s, ended_s))
            ready_s = step.met_s
            if stage + 1 < len(self._free_s):
                for shape in step.shapes:
                    if shape is not None:
                        ready_s = max(ready_s, ended_s + self._times.hop_s(stage, shape, agreement))
        return found

    def _rest_if_stuck(self, now_s: float) -> None:
        """Somebody waits, and nobody can run: vLLM runs dummies until something comes."""
        for loop in self.loops:
            if loop.core.has_requests:
                self._pause(now_s)
                return

    # -- what others see -------------------------------------------------------------------------------------------

    def load(self, rank: int) -> tuple[int, int]:
        """Requests that wait and requests that run."""
        loop = self.loops[rank]
        waiting, running = loop.core.load
        return waiting + len(loop.inbox), running

    @property
    def next_scrape_s(self) -> float:
        """When what ranks show then is kept next."""
        return self._scrapes.next_s if self._scrapes is not None else inf

    def show(self, now_s: float) -> None:
        """Something is about to change: keep what each rank showed at the last scrape."""
        scrapes = self._scrapes
        if scrapes is not None and scrapes.passed(now_s):
            self.shown = self.metrics(scrapes.last_s)

    def metrics(self, time_s: float) -> list[Metrics]:
        """What each rank showed just before a time since which nothing has changed."""
        return [with_waiting(loop.core.metrics_before(time_s), len(loop.inbox)) for loop in self.loops]

    def num_cached_blocks(self, rank: int, request: Request) -> int:
        """Leading blocks of a request that a rank holds as it comes."""
        return self.loops[rank].core.num_cached_blocks(request)

    # -- all that happens before a time ----------------------------------------------------------------------------

    def catch_up(self, now_s: float) -> list[Finished]:
        """Do all before a request comes, and keep what each rank showed at the last scrape; who has finished by then."""
        scrapes = self._scrapes
        if scrapes is None or not scrapes.passed(now_s):
            return self.advance(now_s)
        told = self.advance(scrapes.last_s)
        self.shown = self.metrics(scrapes.last_s)
        return told + self.advance(now_s)

    def leap(self, until_s: float) -> None:
        """Do many steps at once in which all ranks do nothing but decode or idle, and for which all are called before that time."""
        leaps = self._leaps
        if self._launched or self._log is not None or not leaps.may_begin(self.loops, until_s):
            return
        for loop in self.loops:
            if loop.next == BACK:
                self.act(loop)
        if self._launched:
            return
        num_steps = leaps.do(self.loops, self._free_s, self._tokens_s, until_s)
        if num_steps:
            self._num_run += num_steps
            self._num_vain = 0
            self._tokens_s = leaps.tokens_s

    def advance(self, until_s: float) -> list[Finished]:
        """Do all before that time; who has finished."""
        told: list[Finished] = []
        while not self.is_paused:
            self.leap(until_s)
            loop = self.following
            if loop.at_s >= until_s:
                break
            finished = self.act(loop)
            if finished:
                told.append((loop.number, finished))
        return told
