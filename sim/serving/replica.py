"""One engine and its clock: schedule, launch, wait for the device, take the tokens in.

Mirrors vLLM's v1/engine/core.py (`step` and `step_with_batch_queue`). Deliberate difference: a scheduler that has work
but can schedule nothing waits for the next arrival, where vLLM polls every millisecond.

Nothing reaches a replica before the next arrival. Up to that horizon it does pass after pass, and leaps over those that
run the same decodes.
"""

import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from sim.errors import ConfigError
from sim.serving.arrivals import replay
from sim.serving.batch import Batch
from sim.serving.config import SchedulerConfig
from sim.serving.front_door import Incoming
from sim.serving.leaps import DecodeSteps, Leap, after, end_s, num_launched_before
from sim.serving.recorder import Recorder
from sim.serving.records import Records
from sim.serving.request import Request
from sim.serving.scheduler import Scheduler, UnexpectedPreemptionError
from sim.serving.step_log import FirstTime, LogRow, StepLogger
from sim.steptime.protocol import StepTimeModel
from sim.workload.trace import Trace

Progress = Callable[[int, int], None]
ResultT = TypeVar("ResultT")

MOST_FRUITLESS_PREEMPTIONS = 10_000
NOBODY: list[Request] = []


class Replica:
    """A scheduler and a device that runs one batch after the other. `on_finished` is told who finished, and when.

    Invariants: of the `_num_launched` batches the last `_num_in_flight` have not come back, at most `_lag` + 1, which is 1
    or 2: the last ends at `_device_free_s`, the other at `_oldest_end_s`. `now_s` is the time of the next pass, if there is work.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        step_time: StepTimeModel,
        recorder: Recorder,
        *,
        start_s: float,
        num_keys: int = 0,
        expects_preemption: bool = True,
        log: StepLogger | None = None,
        max_passes: int = sys.maxsize,
    ) -> None:
        self._lag = config.lag
        self._step_time = step_time
        self._decode_steps: dict[int, DecodeSteps] = {}
        self._recorder = recorder
        self._log = log
        self._passes_left = max_passes
        self._num_launched = 0
        self._num_in_flight = 0
        self.now_s = self._device_free_s = self._oldest_end_s = self._horizon_s = start_s
        self._num_fruitless_preemptions = 0
        self.scheduler = Scheduler(config, num_keys, expects_preemption=expects_preemption)
        self.on_finished: Callable[[Sequence[Request], float], None] | None = None

    def submit(self, request: Request) -> None:
        """Take in a request at its time of arrival; it is seen by the next scheduling pass, also by one at this very instant."""
        self.now_s = max(self.now_s, request.arrival_s)
        self.scheduler.admission.add(request)
        if self._log:
            self._log.arrived(request)

    @property
    def load(self) -> tuple[int, int]:
        """Requests that wait, those not yet looked at included, and those that run, after the last pass."""
        return len(self.scheduler.waiting), len(self.scheduler.running)

    def advance(self, until_s: float) -> bool:
        """Do the passes that begin before that time, or before what `on_finished` may bring; False if nothing is left to do."""
        scheduler, lag = self.scheduler, self._lag
        self._horizon_s = until_s
        while self.now_s < self._horizon_s and self._passes_left > 0:
            num_passes = scheduler.steady.num_passes(self._num_launched) if self._num_in_flight == lag else 0
            if num_passes == 0:
                if not self._pass():
                    return False
            elif scheduler.prefills:
                self._fill(num_passes)
            else:
                self._leap(num_passes)
        return self._passes_left > 0

    def _leap(self, max_passes: int) -> None:
        """Do steady passes, as many as begin before the horizon, and collect as many batches."""
        scheduler, decodes, step = self.scheduler, self.scheduler.decodes, self._num_launched
        num_decodes = decodes.count
        if num_decodes not in self._decode_steps:
            self._decode_steps[num_decodes] = DecodeSteps(self._step_time.decode_curve(num_decodes), num_decodes)
        start_s = max(self.now_s, self._device_free_s)
        steps = self._decode_steps[num_decodes]
        leap = steps.leap(decodes.context_sum(step), min(max_passes, self._passes_left), start_s)
        num_passes = num_launched_before(leap, self._horizon_s, self._lag)
        to_release = scheduler.steady.num_to_release(step, num_passes)
        self._do_steady(leap, to_release)
        if to_release < num_passes and self.now_s < self._horizon_s:
            self._do_steady(after(leap, to_release), num_passes - to_release)

    def _fill(self, max_passes: int) -> None:
        """Steady passes, as many as begin before the horizon, in which a prompt fills the budget."""
        steady, step_time = self.scheduler.steady, self._step_time
        for _ in range(min(max_passes, self._passes_left)):
            num_chunk_tokens = steady.num_chunk_tokens
            duration_s = step_time.step_s(steady.filling_shape(self._num_launched, num_chunk_tokens))
            leap = Leap(1, max(self.now_s, self._device_free_s), duration_s, 0.0, 0.0)
            self._do_steady(leap, 1, num_chunk_tokens)
            if self.now_s >= self._horizon_s:
                return

    def _do_steady(self, leap: Leap, num_passes: int, num_chunk_tokens: int = 0) -> None:
        """The first passes of a leap, after the last of which requests may leave."""
        scheduler, step = self.scheduler, self._num_launched
        num_decodes = scheduler.decodes.count
        if self._log:
            ends_s = [end_s(leap, number + 1) for number in range(num_passes)]
            self._log.leap(scheduler, step, ends_s, (self.now_s, leap.start_s))
        scheduler.steady.do(step, num_passes, num_chunk_tokens)
        self._recorder.leap(leap, num_passes, (num_decodes, num_chunk_tokens), scheduler)
        if num_decodes:
            self._num_fruitless_preemptions = 0
        self._passes_left -= num_passes
        self._num_launched = step + num_passes
        self._device_free_s = end_s(leap, num_passes)
        self.now_s = end_s(leap, num_passes - 1) if self._lag else self._device_free_s
        self._take_in(self._num_launched - 1 - self._lag)

    def _pass(self) -> bool:
        """One pass; a batch is collected once enough are in flight or nothing more runs. False where neither is left."""
        if self.scheduler.has_requests:
            batch = self.scheduler.schedule(self._num_launched)
            self._passes_left -= 1
            if not batch.did_nothing:
                if batch.preempted or self._num_fruitless_preemptions:
                    self._require_progress(batch)
                self._launch(batch)
                if self._num_in_flight <= self._lag:
                    return True
        if self._num_in_flight == 0:
            return False
        self._collect()
        return True

    def _require_progress(self, batch: Batch) -> None:
        """Requests may preempt each other for ever; vLLM would let them, and so would a simulation."""
        if batch.shape and batch.shape.num_sampled:
            self._num_fruitless_preemptions = 0
            return
        self._num_fruitless_preemptions += len(batch.preempted)
        if self._num_fruitless_preemptions > MOST_FRUITLESS_PREEMPTIONS:
            raise ConfigError(
                f"requests preempt each other for ever: {MOST_FRUITLESS_PREEMPTIONS:,} preemptions without a token between"
                f" them, {len(self.scheduler.running)} running and {len(self.scheduler.waiting)} waiting at"
                f" {self.now_s:.3f} s; give more KV blocks, or admit with scheduler_reserve_full_isl."
            )

    def _launch(self, batch: Batch) -> None:
        start_s = max(self.now_s, self._device_free_s)
        duration_s = self._step_time.step_s(batch.shape) if batch.shape else 0.0
        self._oldest_end_s = self._device_free_s
        self._device_free_s = start_s + duration_s
        self._num_launched += 1
        self._num_in_flight += 1
        for request in batch.admitted:
            if request.num_preemptions == 0:
                request.first_scheduled_s = self.now_s
        self._recorder.step(batch, start_s, duration_s, self.scheduler)
        if self._log:
            self._log.step(self.scheduler, batch, (self.now_s, start_s, self._device_free_s))

    def _collect(self) -> None:
        """Wait for the oldest batch in flight and take its tokens in."""
        oldest = self._num_launched - self._num_in_flight
        self._num_in_flight -= 1
        self.now_s = max(self.now_s, self._oldest_end_s if self._num_in_flight else self._device_free_s)
        self._take_in(oldest)

    def _take_in(self, batch: int) -> None:
        """A batch has come back."""
        self.scheduler.num_collected = batch + 1
        finished = self.scheduler.release_ended(batch) if batch in self.scheduler.ended else NOBODY
        if self._log:
            self._log.collected(self.scheduler, batch, finished)
        if finished:
            self._finish(finished)

    def _finish(self, finished: Sequence[Request]) -> None:
        for request in finished:
            self._recorder.request(request, request.max_tokens)
        if self.on_finished:
            self.on_finished(finished, self.now_s)
            self._horizon_s = self.now_s  # what it brings may arrive before the old horizon


def simulate(
    trace: Trace,
    config: SchedulerConfig,
    step_time: StepTimeModel,
    *,
    on_progress: Progress | None = None,
    step_log: Callable[[LogRow], None] | None = None,
) -> Records:
    """Replay a trace through one engine; times count from the trace's own zero.

    `on_progress` is called with (requests done, all) as they arrive; `step_log` gets one dict a step.
    Requests that can never run are rejected with their reason at arrival and stall nobody.
    """
    rows = FirstTime(step_log) if step_log else None
    on_arrival = counted(on_progress, len(trace))

    def attempt(expects_preemption: bool) -> Records:
        incoming = Incoming(trace, config)
        recorder = Recorder(incoming)
        log = StepLogger(rows.begin()) if rows else None
        replica = Replica(
            config, step_time, recorder,
            start_s=min(0.0, float(trace.arrival_s[0])), num_keys=incoming.num_keys,
            expects_preemption=expects_preemption, log=log,
        )  # fmt: skip
        replay(incoming, replica, on_arrival)
        return recorder.records(replica.scheduler)

    records = without_preemption_if_possible(attempt)
    if on_progress:
        on_progress(len(trace), len(trace))
    return records


def without_preemption_if_possible(attempt: Callable[[bool], ResultT]) -> ResultT:
    """A simulation that counts on no preemption or, where one comes after all, done again and expecting it."""
    try:
        return attempt(False)
    except UnexpectedPreemptionError:
        return attempt(True)


def counted(on_progress: Progress | None, num_requests: int) -> Callable[[int], None] | None:
    """Progress as arrivals tell it: by row, and each once, also if a simulation begins again."""
    if on_progress is None:
        return None
    furthest = -1

    def tell(row: int) -> None:
        nonlocal furthest
        if row > furthest:
            furthest = row
            on_progress(row, num_requests)

    return tell
