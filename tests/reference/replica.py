"""One engine as a SimPy process: schedule, launch, wait for the device, take the tokens in.

Mirrors vLLM's v1/engine/core.py (`step` and `step_with_batch_queue`). Deliberate difference: a scheduler that has work
but can schedule nothing waits for the next arrival, where vLLM polls every millisecond.
"""

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import simpy

from sim.engine.config import SchedulerConfig
from sim.engine.records import Records
from sim.steptime.protocol import StepShape, StepTimeModel
from sim.workload.trace import Trace
from tests.reference.arrivals import AFTER_ALL, Due, arrivals
from tests.reference.front_door import let_in, make_requests
from tests.reference.recorder import Recorder, StepLog
from tests.reference.request import Request
from tests.reference.scheduler import Batch, Scheduler

Process = Generator[simpy.Event, Any, None]


@dataclass(frozen=True, slots=True)
class Launched:
    """A batch on the device, and when it will be done."""

    batch: Batch
    end_s: float
    log_row: dict[str, Any] | None


class Replica:
    """A scheduler, a device that runs one batch after the other, and the batches in flight between them."""

    def __init__(
        self,
        env: simpy.Environment,
        config: SchedulerConfig,
        step_time: StepTimeModel,
        recorder: Recorder,
        *,
        max_passes: int | None = None,
        on_finished: Callable[[Request], None] | None = None,
    ) -> None:
        self._env = env
        self._depth = config.num_batches_in_flight
        self._num_usable_blocks = config.num_usable_blocks
        self._step_time = step_time
        self._recorder = recorder
        self._passes_left = max_passes
        self._on_finished = on_finished
        self._in_flight: deque[Launched] = deque()
        self._device_free_s = env.now
        self._inbox: list[Request] = []
        self._woken = env.event()
        self.scheduler = Scheduler(config)

    def submit(self, request: Request) -> None:
        """Hand over a request; it is seen by the next scheduling pass, also by one at this very instant."""
        self._inbox.append(request)
        if not self._woken.triggered:
            self._woken.succeed()

    @property
    def load(self) -> tuple[int, int]:
        """Requests that wait, those not yet looked at included, and those that run."""
        return len(self._inbox) + len(self.scheduler.waiting), len(self.scheduler.running)

    @property
    def metrics(self) -> tuple[int, int, float]:
        """The load, and the share of the usable blocks that somebody holds."""
        return *self.load, 1.0 - self.scheduler.kv.pool.num_free_blocks / self._num_usable_blocks

    def run(self) -> Process:
        """Fill the batch queue before waiting; when it is full or nothing can be scheduled, wait for its oldest batch."""
        while self._passes_left != 0:
            yield Due(self._env, 0, AFTER_ALL)
            self._drain_inbox()
            if len(self._in_flight) < self._depth and self.scheduler.has_requests:
                batch = self._pass()
                if not batch.did_nothing:
                    self._launch(batch)
                    if len(self._in_flight) < self._depth:
                        continue
                elif not self._in_flight:
                    yield self._next_arrival()
                    continue
            if self._in_flight:
                yield from self._collect()
            else:
                yield self._next_arrival()

    def _pass(self) -> Batch:
        if self._passes_left is not None:
            self._passes_left -= 1
        return self.scheduler.schedule()

    def _next_arrival(self) -> simpy.Event:
        self._woken = self._env.event()
        return self._woken

    def _drain_inbox(self) -> None:
        for request in self._inbox:
            self._recorder.arrived(request)
            self.scheduler.add_request(request)
        self._inbox.clear()

    def _launch(self, batch: Batch) -> None:
        now = self._env.now
        start_s = max(now, self._device_free_s)
        shape = step_shape(batch)
        end_s = start_s + (self._step_time.step_s(shape) if batch.rows else 0.0)
        self._device_free_s = end_s
        for row in batch.rows:
            if row.request.first_scheduled_s is None:
                row.request.first_scheduled_s = now
        self._recorder.preempted(batch)
        if batch.rows:
            self._recorder.step(shape, start_s, end_s, self.scheduler)
        log_row = self._recorder.open_log_row(batch, shape, (now, start_s, end_s), self.scheduler)
        self._in_flight.append(Launched(batch, end_s, log_row))

    def _collect(self) -> Process:
        oldest = self._in_flight.popleft()
        if oldest.end_s > self._env.now:
            yield self._env.timeout(oldest.end_s - self._env.now)
        sampled, finished = self.scheduler.update(oldest.batch)
        for request in sampled:
            self._recorder.token(request, oldest.end_s)
        for request in finished:
            request.finish_s = oldest.end_s
            if self._on_finished:
                self._on_finished(request)
        self._recorder.close_log_row(oldest.log_row, finished, self.scheduler.kv.pool.num_free_blocks)


def step_shape(batch: Batch) -> StepShape:
    """What the step-time model sees of a batch."""
    decodes = [row for row in batch.rows if row.num_tokens == 1]
    return StepShape(
        num_decodes=len(decodes),
        decode_context_tokens=sum(row.num_computed_before + 1 for row in decodes),
        chunks=tuple((row.num_tokens, row.num_computed_before) for row in batch.rows if row.num_tokens > 1),
        num_sampled=sum(row.samples for row in batch.rows),
    )


def simulate(
    trace: Trace,
    config: SchedulerConfig,
    step_time: StepTimeModel,
    *,
    on_progress: Callable[[int], None] | None = None,
    step_log: StepLog | None = None,
) -> Records:
    """Replay a trace through one engine; times count from the trace's own zero.

    `on_progress` is told the row of each arrival; `step_log` gets one dict a step.
    Requests that can never run are rejected with their reason at arrival and stall nobody.
    """
    env = simpy.Environment(initial_time=min(0.0, float(trace.arrival_s[0])))
    recorder = Recorder(step_log)
    replica = Replica(env, config, step_time, recorder)
    requests = make_requests(trace, config)
    env.process(replica.run())
    env.process(arrivals(env, let_in(requests), replica, on_progress))
    env.run()
    return recorder.records(requests, replica.scheduler)
