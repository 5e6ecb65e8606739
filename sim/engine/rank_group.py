"""Data-parallel ranks that step together: their engines, the steps in flight, and the waves that these come in. It is told the time.

Mirrors vLLM's DPEngineCoreProc (v1/engine/core.py, 0.32). A wave of steps begins with a request; now and then the ranks look at
each other, and it ends if none has work left. Their hosts meet before each step,
which begins when the last has made its batch ready. Deliberate difference: all ranks schedule a step at the same instant, where vLLM's idle
ranks commit themselves to a dummy batch a little before.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, Protocol

from sim.engine.balancer import Balancers
from sim.engine.leaps import Leap, end_s, num_launched_before
from sim.engine.lock_step_core import LockStepCore
from sim.engine.metrics import NOTHING_SHOWN, Metrics
from sim.engine.plans import LeapPlan
from sim.engine.rank_records import RankRecords
from sim.engine.rank_steps import DualBatches, RankDecodes, RanksDecoding, RankSteps, dummy_batch
from sim.engine.request import Request
from sim.engine.ticks import ticks
from sim.engine.unlimited import UNLIMITED
from sim.steptime.graphs import GraphDispatch
from sim.steptime.protocol import StepShape, StepTimeModel, num_tokens_of


@dataclass(frozen=True)
class LockStepRules:
    """Ranks look at each other after every `sync_interval`-th step of a wave, and after the first if `looks_at_once`.

    With a `prefill_interval` above 1, prefills may begin or go on in every so many-th step of a wave alone. `dispatch` is that
    of step times which know of other ranks; a dummy batch has `num_drafts`. Steps are split in two by `dbo`, if at all.
    """

    sync_interval: int = 16
    looks_at_once: bool = True
    prefill_interval: int = 1
    dispatch: GraphDispatch | None = None
    num_drafts: int = 0
    dbo: DualBatches | None = None


class RankLogger(Protocol):
    """Told of each step, before it comes back: (wave, step of the wave), which ranks ran a batch, when each was called, and its times."""

    def steps(
        self, place: tuple[int, int], ran: Sequence[bool], called_s: Sequence[float], start_s: float, end_s: float
    ) -> None: ...


Finished = tuple[int, Sequence[Request]]
"""A rank, and requests that it has finished."""
NOBODY: Final[list[Finished]] = []
"""What most steps bring back: a list that nobody adds to."""


def latest(times_s: list[float]) -> float:
    """The most of them: a loop, since compiled code calls `max` of a list for several times as much."""
    latest_s = times_s[0]
    for time_s in times_s:
        latest_s = max(latest_s, time_s)
    return latest_s


class StepsAhead:
    """The first `num_passes` of a leap of all ranks, which are certain unless a request arrives.

    At `end_s` the last step that comes back during them is back; no request finishes before. For the first all ranks would take `all_s`
    together by themselves, and the slowest one `slowest_s`.
    """

    __slots__ = ("all_s", "end_s", "leap", "num_passes", "ranks", "slowest_s")

    def __init__(
        self, leap: Leap, num_passes: int, end_s: float, ranks: RanksDecoding, all_s: float, slowest_s: float
    ) -> None:
        self.leap = leap
        self.num_passes = num_passes
        self.end_s = end_s
        self.ranks = ranks
        self.all_s = all_s
        self.slowest_s = slowest_s

    @property
    def of_a_rank(self) -> LeapPlan:
        """The same passes as those of a rank that decodes."""
        return LeapPlan(self.leap, self.num_passes, 0, self.end_s)


class RankGroup:
    """All ranks. `num_passes` counts the steps of the present wave; while it `is_paused` none is under way.

    Invariants: of the steps launched those that end at `ends_s` have not come back, `most_in_flight` or fewer; `now_s` is the time of
    the next one. Steps `ahead` are certain, may have begun, and have not been committed. Each rank's metrics were `shown` at the last scrape.
    Ranks that transfer KV poll while all pause, for as long as some of them hold what is to be sent.
    """

    def __init__(
        self,
        cores: Sequence[LockStepCore],
        step_time: StepTimeModel,
        rules: LockStepRules,
        *,
        num_batches_in_flight: int,
        start_s: float,
        scrape_interval_s: float | None = None,
        log: RankLogger | None = None,
    ) -> None:
        self.cores = list(cores)
        self._decodes = [RankDecodes() for _ in cores]
        self.records = RankRecords(len(self.cores), may_split=rules.dbo is not None)
        self.num_passes = 0
        self.is_paused = True
        self.now_s = start_s
        self.ends_s: list[float] = []
        self.most_in_flight = num_batches_in_flight
        self._rules = rules
        self._steps = RankSteps(step_time, rules.dispatch, dummy_batch(rules.num_drafts), rules.dbo)
        self._log = log
        self._device_free_s = self._prepared_s = start_s
        self.ahead: StepsAhead | None = None
        self._untold: list[Finished] = []
        self._untold_s: list[float] = []
        self._transfers_kv = self.cores[0].transfers_kv
        self._ended: list[Finished] = []
        self.shown = [NOTHING_SHOWN] * len(self.cores)
        self._scrapes = ticks(scrape_interval_s)

    def begin(self, now_s: float) -> None:
        """A request has come while all paused."""
        self.poll_before(now_s)
        self.is_paused = False
        self.now_s = max(self.now_s, now_s)

    @property
    def is_full(self) -> bool:
        """As many steps are in flight as can be."""
        return len(self.ends_s) == self.most_in_flight

    def look(self) -> None:
        """End the wave if it is time to look, and nobody has work."""
        rules, num_passes = self._rules, self.num_passes
        if num_passes % rules.sync_interval == 0 or (num_passes == 1 and rules.looks_at_once):
            for core in self.cores:
                if core.has_requests:
                    return
            self._pause()
            self.num_passes = 0
            self.records.num_waves += 1

    def _pause(self) -> None:
        """Steps in flight are dummies, or of nobody who is still there; none waits for them, unless ranks that transfer KV free blocks with them."""
        self.is_paused = True
        if not any(core.awaits_batch for core in self.cores):
            self.ends_s = []
            if not self._transfers_kv:
                for core in self.cores:
                    while core.num_in_flight:
                        core.collect()
        for core in self.cores:
            core.pause(self.now_s)

    @property
    def _place(self) -> tuple[int, int]:
        """The number of the wave, and of its next step."""
        return self.records.num_waves, self.num_passes

    # -- step by step ----------------------------------------------------------------------------------------------

    def launch(self) -> bool:
        """Have all ranks begin a step; False, and they pause, if none of them can do anything, nor will before a request comes."""
        is_throttled = self.num_passes % self._rules.prefill_interval != 0
        shapes: list[StepShape] = []
        counts: list[int] = []
        for core in self.cores:
            shape = core.schedule(self.now_s, is_throttled=is_throttled)
            counts.append(0 if shape is None else num_tokens_of(shape))
            shapes.append(self._steps.dummy if shape is None else shape)
        agreement = self._steps.agreement(shapes)
        seconds = self._steps.seconds(shapes, agreement)
        called_s, duration_s = self.now_s, latest(seconds)
        if self._transfers_kv:
            self._rest()
        met_s = max(self.now_s, self._prepared_s)
        self._prepared_s = -inf
        for core in self.cores:
            self._prepared_s = max(self._prepared_s, core.prepare(met_s, self._device_free_s))
        start_s = max(self._prepared_s, self._device_free_s)
        ran = [core.run(start_s, duration_s) for core in self.cores]
        if not self._transfers_kv and self._is_stuck:
            self._pause()
            return False
        self.records.count(counts, agreement)
        self.records.last(seconds, duration_s)
        self._device_free_s = start_s + duration_s
        if self._log is not None:
            self._log.steps(self._place, ran, [called_s] * len(ran), start_s, self._device_free_s)
        self.ends_s.append(self._device_free_s)
        self.num_passes += 1
        return True

    @property
    def _is_stuck(self) -> bool:
        """Somebody waits, and nobody runs: vLLM runs dummies until something comes."""
        waits = False
        for core in self.cores:
            if core.num_in_flight:
                return False
            waits = waits or core.has_requests
        return waits

    def _rest(self) -> None:
        """After calls: who computes nothing sleeps before its dummy batch, and all wait for it."""
        for rank, core in enumerate(self.cores):
            self.now_s = max(self.now_s, core.rests_until_s)
            ended = core.ended()
            if ended:
                self._ended.append((rank, ended))

    def ended(self) -> list[Finished]:
        """Who has ended with what the last calls heard of transfers; to be asked for once."""
        ended, self._ended = self._ended, []
        return ended

    def collect(self) -> list[Finished]:
        """The oldest step in flight is back: take in what the ranks had in it."""
        now_s = self.ends_s.pop(0)
        self.now_s = max(self.now_s, now_s)
        finished = NOBODY
        for rank, core in enumerate(self.cores):
            if core.num_in_flight and core.next_collect_s <= now_s:
                requests = core.collect()
                if requests:
                    finished = [*finished, (rank, requests)]
        return finished

    # -- while all pause -----------------------------------------------------------------------------------------------

    @property
    def polls(self) -> bool:
        """Whether ranks go on calling their schedulers, to hear when what they hold has been sent."""
        return any(core.has_transfers or core.awaits_batch for core in self.cores)

    @property
    def next_transfer_end_s(self) -> float:
        """Calls before that change nothing; `inf` as long as it is not known."""
        return min([core.next_transfer_end_s for core in self.cores])

    def poll(self) -> None:
        """The next calls, which compute nothing."""
        for core in self.cores:
            core.schedule(self.now_s)
        self._rest()

    def poll_before(self, until_s: float) -> None:
        """Those that keep KV in host memory poll each by itself, as nobody else hears of it: do what they do before that time."""
        if self.is_paused and self._transfers_kv:
            for core in self.cores:
                core.poll_before(until_s)

    def skip_polls(self, until_s: float) -> None:
        """Pass over those before that time."""
        while self.now_s < until_s:
            self.now_s += self.cores[0].idle_sleep_s

    # -- many steps at once ----------------------------------------------------------------------------------------

    def plan(self) -> StepsAhead | None:
        """The next steps in which every rank only decodes, or idles, up to the first after which a request may finish."""
        if len(self.ends_s) + 1 < self.most_in_flight:
            return None
        decodes = self._decodes
        num_passes = UNLIMITED
        for rank, core in enumerate(self.cores):
            num_certain, num_decodes, context_tokens = core.decodes
            if num_certain == 0:
                return None
            num_passes = min(num_passes, num_certain)
            own = decodes[rank]
            own.num_decodes, own.context_tokens = num_decodes, context_tokens
        if num_passes == UNLIMITED:
            num_passes = self._num_before_look
        ranks = self._steps.decoding(decodes)
        leap = ranks.leap(decodes, num_passes, max(self.now_s, self._device_free_s))
        all_s = slowest_s = 0.0
        for own in decodes:
            all_s += own.seconds
            slowest_s = max(slowest_s, own.seconds)
        return StepsAhead(leap, leap.num_steps, self._ended_s(leap, leap.num_steps), ranks, all_s, slowest_s)

    @property
    def _num_before_look(self) -> int:
        """Steps of ranks that all idle until they look at each other."""
        interval = self._rules.sync_interval
        return 1 if self.num_passes == 0 else interval - self.num_passes % interval

    def _ended_s(self, leap: Leap, num_passes: int) -> float:
        """When the last step comes back of those that do during a plan of so many."""
        return end_s(leap, num_passes + 1 - self.most_in_flight)

    def num_begun(self, plan: StepsAhead, now_s: float) -> int:
        """Of the planned steps, at least one, those that begin before that time."""
        return min(plan.num_passes, num_launched_before(plan.leap, now_s, self.most_in_flight))

    def cut(self, plan: StepsAhead, now_s: float) -> StepsAhead:
        """What of it has begun."""
        num_begun = self.num_begun(plan, now_s)
        if num_begun == plan.num_passes:
            return plan
        return self._first_of(plan, num_begun)

    def _first_of(self, plan: StepsAhead, num_passes: int) -> StepsAhead:
        ended_s = self._ended_s(plan.leap, num_passes)
        return StepsAhead(plan.leap, num_passes, ended_s, plan.ranks, plan.all_s, plan.slowest_s)

    def stop_within(self, plan: StepsAhead, now_s: float) -> None:
        """Do what has begun of a plan by then; of its steps the last stays on the device, unless it comes back at that very time."""
        self.commit_but_one(self.cut(plan, now_s))
        self.launch()
        if self.is_full and self.ends_s[0] <= now_s:
            self.collect()

    def commit_but_one(self, plan: StepsAhead) -> None:
        """Do the planned steps but for the last, which may bring back something else than was certain."""
        num_passes = plan.num_passes - 1
        self.ahead = None
        if num_passes:
            self.commit(self._first_of(plan, num_passes))

    def use(self, step_time: StepTimeModel) -> None:
        """Steps that have not begun take other times from now on."""
        rules = self._rules
        self._steps = RankSteps(step_time, rules.dispatch, dummy_batch(rules.num_drafts), rules.dbo)

    def commit(self, plan: StepsAhead) -> list[Finished]:
        """Do the planned steps; the requests that finish with the last of them."""
        leap, num_passes, ranks = plan.leap, plan.num_passes, plan.ranks
        self.ahead = None
        last_end_s = end_s(leap, num_passes)
        self.records.decoded(ranks, num_passes)
        self.records.lasted(plan.all_s, plan.slowest_s, last_end_s - leap.start_s)
        if self._log is not None:
            self._log_plan(self._log, plan)
        self.num_passes += num_passes
        self._device_free_s = last_end_s
        self.ends_s = [end_s(leap, number + 1) for number in range(num_passes + 1 - self.most_in_flight, num_passes)]
        self.now_s = plan.end_s
        finished = NOBODY
        for rank, num_decodes in enumerate(ranks.counts):
            if num_decodes:
                requests = self.cores[rank].leap(leap, num_passes)
                if requests:
                    finished = [*finished, (rank, requests)]
        return finished

    def _log_plan(self, log: RankLogger, plan: StepsAhead) -> None:
        wave, step = self._place
        ran = [num_decodes > 0 for num_decodes in plan.ranks.counts]
        now_s, start_s = self.now_s, plan.leap.start_s
        for number in range(plan.num_passes):
            ended_s = end_s(plan.leap, number + 1)
            log.steps((wave, step + number), ran, [now_s] * len(ran), start_s, ended_s)
            now_s, start_s = start_s if self.most_in_flight > 1 else ended_s, ended_s

    def show(self, now_s: float) -> bool:
        """Keep what each rank showed at the last scrape, since which nothing has changed but by the steps ahead; False if that has been kept."""
        scrapes = self._scrapes
        if scrapes is None or not scrapes.passed(now_s):
            return False
        self.shown = self.metrics(scrapes.last_s)
        return True

    def metrics(self, time_s: float) -> list[Metrics]:
        """What each rank showed just before a time since which nothing has changed but by the steps ahead."""
        self.poll_before(time_s)
        ahead = self.ahead
        if ahead is None:
            return [core.metrics_before(time_s) for core in self.cores]
        plan, counts = ahead.of_a_rank, ahead.ranks.counts
        return [
            core.metrics_within(plan, time_s) if counts[rank] else core.metrics_before(time_s)
            for rank, core in enumerate(self.cores)
        ]

    def num_cached_blocks(self, rank: int, request: Request) -> int:
        """Leading blocks of a request that a rank holds as it comes, after the steps that have begun."""
        core, ahead = self.cores[rank], self.ahead
        if ahead is None or ahead.ranks.counts[rank] == 0:
            return core.num_cached_blocks(request)
        return core.num_cached_within(ahead.of_a_rank, request.arrival_s, request)

    # -- all that begins before a time -----------------------------------------------------------------------------

    def catch_up(self, now_s: float, *, keeps_plan: bool = False) -> list[Finished]:
        """Do all steps that begin before a request comes, and keep what each rank showed at the last scrape; who has finished by now.

        Where nobody comes but to look, it `keeps_plan`.
        """
        scrapes = self._scrapes
        if scrapes is None or not scrapes.passed(now_s):
            return self.advance(now_s, keeps_plan=keeps_plan)
        told = self.advance(scrapes.last_s, keeps_plan=True)
        self.shown = self.metrics(scrapes.last_s)
        return told + self.advance(now_s, keeps_plan=keeps_plan)

    def serve(self, answers: Sequence[Request], balancers: Balancers) -> list[Finished]:
        """Requests come: catch up, tell the balancers, and give each to the rank that they choose; who has finished by now."""
        now_s = answers[0].arrival_s
        told = self.catch_up(now_s)
        for rank, finished in told:
            for request in finished:
                balancers.answered(request, rank)
        if balancers.updates.passed(now_s):
            balancers.update_all(self.shown)
        for request in answers:
            self.cores[balancers.choose(request)].add_request(request)
            if self.is_paused:
                self.begin(now_s)
        return told

    def advance(self, until_s: float, *, keeps_plan: bool = False) -> list[Finished]:
        """Do all steps that begin before that time; who has finished before it, and was not told of.

        One that `keeps_plan` does none of the last steps that are certain if only some of them begin by then: they are `ahead`.
        """
        while not self.is_paused and self.now_s < until_s:
            plan = self.ahead or self.plan()
            finished = NOBODY
            back_s = self.now_s
            if plan is not None:
                if keeps_plan and self.num_begun(plan, until_s) < plan.num_passes:
                    self.ahead = plan
                    break
                finished = self.commit(self.cut(plan, until_s))
                back_s = self.now_s
            elif self.launch() and self.is_full:
                back_s = self.ends_s[0]
                finished = self.collect()
            for one in finished:
                self._untold.append(one)
                self._untold_s.append(back_s)
            self.look()
        self.poll_before(until_s)
        return self._told_before(until_s) if self._untold else NOBODY

    def _told_before(self, time_s: float) -> list[Finished]:
        if self._untold_s[-1] < time_s:  # they stand in order of time
            told, self._untold, self._untold_s = self._untold, [], []
            return told
        count = bisect_left(self._untold_s, time_s)
        told, self._untold, self._untold_s = self._untold[:count], self._untold[count:], self._untold_s[count:]
        return told
