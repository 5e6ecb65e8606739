"""One engine as a SimPy process: schedule, launch, wait for the device, take the tokens in.

Mirrors vLLM's v1/engine/core.py (`step` and `step_with_batch_queue`). Deliberate difference: unless `idle_sleep_s` is
given, a scheduler that has work but can schedule nothing waits for the next arrival, where vLLM polls every millisecond.
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import simpy

from sim.engine.config import SchedulerConfig
from sim.engine.records import Records
from sim.errors import ConfigError
from sim.steptime.protocol import StepShape, StepTimeModel
from sim.workload.trace import Trace
from tests.reference.aborts import TakesAborts
from tests.reference.adapters import Adapters
from tests.reference.arrivals import ANSWERED, Due, arrivals, back_from, called_at
from tests.reference.connector import Job
from tests.reference.device import Device
from tests.reference.front_door import let_in, make_requests
from tests.reference.modes import PLAIN, Modes, Transfers
from tests.reference.recorder import Recorder, StepLog
from tests.reference.request import Request, RequestStatus
from tests.reference.scheduler import Batch, Scheduler

Process = Generator[simpy.Event, Any, None]
MOST_VAIN_CALLS = 100


@dataclass(frozen=True, slots=True)
class Launched:
    """A batch on the device, and when it begins and will be done."""

    batch: Batch
    start_s: float
    end_s: float
    log_row: dict[str, Any] | None


class Replica(TakesAborts):
    """A scheduler, a device that runs one batch after the other, and the batches in flight between them."""

    def __init__(
        self,
        env: simpy.Environment,
        config: SchedulerConfig,
        step_time: StepTimeModel,
        recorder: Recorder,
        *,
        number: int = 0,
        modes: Modes = PLAIN,
        max_passes: int | None = None,
        on_finished: Callable[[Request], object] | None = None,
        on_refused: Callable[[Request], None] | None = None,
    ) -> None:
        super().__init__(env)
        self._number = number
        self._on_refused = on_refused
        self._undecided: list[Request] = []
        self._modes = modes
        self._depth = modes.num_batches_in_flight or config.num_batches_in_flight
        self._num_usable_blocks = config.num_usable_blocks
        self._step_time = step_time
        self._recorder = recorder
        self._passes_left = max_passes
        self._on_finished = on_finished
        self._in_flight: deque[Launched] = deque()
        self._device = Device(modes.pipeline, env.now)
        self._adapters = Adapters(modes.loras) if modes.loras else None
        self._unfinished: set[Request] = set()
        self._num_calls_since_idle = 0
        self._num_vain_calls = 0
        self._woken = env.event()
        self.scheduler = Scheduler(config, modes)

    def submit(self, request: Request, others: Sequence[Request] = ()) -> None:
        """Hand over a request and those for its further answers; it is seen by the next scheduling pass, also by one at this very instant."""
        answers = [request, *others]
        if self._modes.limits_queue:
            self._undecided += answers
            self._env.process(self._let_in(answers, Due(self._env, 0, ANSWERED)))
        else:
            for answer in answers:
                self._accept(answer)

    def _let_in(self, answers: Sequence[Request], turn: Due) -> Process:
        """Turn a request away that finds too many there, once all that comes back at this instant has come back: in its turn, given as it came."""
        yield turn
        request = answers[0]
        if request not in self._undecided:  # aborted meanwhile
            return
        self._undecided = [one for one in self._undecided if one not in answers]
        request.rejected = refusal(self._modes, self._unfinished, len(answers))
        if request.rejected is None:
            for answer in answers:
                self._accept(answer)
        elif self._on_refused:
            self._on_refused(request)

    def _accept(self, request: Request) -> None:
        self._unfinished.add(request)
        self.inbox.append(request)
        self.wake()

    def lose_undecided(self) -> None:
        """The replica is lost with those that it has not let in yet."""
        self._undecided.clear()

    def abort(self, request: Request, reason: str) -> None:
        """vLLM looks at aborts with the requests that come in, and before it takes a batch's tokens in."""
        self._unfinished.discard(request)
        if request in self._undecided:
            self._undecided.remove(request)
            request.failed = reason
        else:
            super().abort(request, reason)

    def wake(self) -> None:
        if not self._woken.triggered:
            self._woken.succeed()

    @property
    def engines(self) -> list["Replica"]:
        """Those behind this address."""
        return [self]

    @property
    def load(self) -> tuple[int, int]:
        """Requests that wait, those not yet looked at included, and those that run."""
        waiting = len(self._undecided) + len(self.inbox) + self.scheduler.num_waiting
        return waiting, len(self.scheduler.running)

    @property
    def metrics(self) -> tuple[int, int, float]:
        """The load, and the share of the usable blocks that somebody holds."""
        return *self.load, 1.0 - self.scheduler.kv.pool.num_free_blocks / self._num_usable_blocks

    def run(self) -> Process:
        """Fill the batch queue before waiting; when it is full or nothing can be scheduled, wait for its oldest batch.

        Batches without work are launched as well, for the worker to hear of transfers and to tell of them. Where nothing is
        on its way and nothing can be scheduled, only an arrival changes that: the process waits for it.
        """
        while self._passes_left != 0:
            yield Due(self._env, 0, called_at(self._number))
            self._drain_inbox()
            batch = None
            if self.scheduler.has_work:
                batch = self._pass()
                self._launch(batch)
                if len(self._in_flight) < self._depth and (batch.rows or self.scheduler.has_work):
                    yield from self._rest(batch)
                    continue
            elif not self._in_flight:
                self._num_calls_since_idle = 0
                yield self._next_arrival()
                continue
            oldest = self._in_flight.popleft()
            yield from self._collect(oldest)
            yield from self._rest(batch, oldest.batch)

    def _rest(self, *batches: Batch | None) -> Process:
        """After a call that scheduled nothing: for a while, or until an arrival where nothing else can change."""
        scheduled = batches[0]
        if (scheduled is not None and scheduled.rows) or not self.scheduler.has_work:
            return
        if self._modes.idle_sleep_s:
            yield self._env.timeout(self._modes.idle_sleep_s)
            return
        concerned = [*batches, *(launched.batch for launched in self._in_flight)]
        if not self.inbox and not self.aborts and all(batch is None or batch.did_nothing for batch in concerned):
            yield self._next_arrival()

    def _pass(self) -> Batch:
        if self._passes_left is not None and self.scheduler.has_requests:
            self._passes_left -= 1
        interval = self._modes.throttle_interval
        is_throttled = interval > 0 and self._num_calls_since_idle % interval != 0
        self._num_calls_since_idle += 1
        self._tell_time()
        batch = self.scheduler.schedule(is_throttled=is_throttled)
        self._count_vain_calls(batch)
        return batch

    def _count_vain_calls(self, batch: Batch) -> None:
        """Calls that compute nothing, whether they load something or nothing is on its way, cannot go on without end."""
        connector = self.scheduler.connector
        if batch.rows or connector is None:
            self._num_vain_calls = 0
        elif connector.begins_loads or not connector.has_pending:
            self._num_vain_calls += 1
        if self._num_vain_calls > MOST_VAIN_CALLS:
            raise ConfigError(f"{MOST_VAIN_CALLS} calls of the scheduler came to nothing")

    def _tell_time(self) -> None:
        if self.scheduler.connector:
            self.scheduler.connector.now_s = self._env.now

    def _next_arrival(self) -> simpy.Event:
        self._woken = self._env.event()
        return self._woken

    def _drain_inbox(self) -> None:
        for request in self.inbox:
            self._recorder.arrived(request)
            self.scheduler.add_request(request)
        self.inbox.clear()
        self.drain_aborts(math.inf)

    def _launch(self, batch: Batch) -> None:
        now = self._env.now
        shape = step_shape(batch)
        wait_s = self._adapters.wait_s(batch) if self._adapters else 0.0
        start_s = self._device.begins_s(batch, now + wait_s)
        if self.scheduler.connector:
            start_s = self._device.wait(start_s, self.scheduler.connector.begin(start_s))
        if self._modes.swap and batch.num_swapped_blocks:
            start_s = self._device.wait(start_s, start_s + batch.num_swapped_blocks * self._modes.swap.block_copy_s)
        runs = self._device.run(batch, start_s, self._step_time.step_s(shape) if batch.rows else 0.0)
        for row in batch.rows:
            if row.request.first_scheduled_s is None:
                row.request.first_scheduled_s = now
        self._recorder.preempted(batch)
        end_s = runs[-1].end_s
        log_row = None
        if batch.rows:
            self._recorder.step(batch, shape, runs, self.scheduler)
        if not batch.did_nothing:
            log_row = self._recorder.open_log_row(
                batch, (now, start_s, end_s), self.scheduler, runs, [there.log_row for there in self._in_flight]
            )
        self._in_flight.append(Launched(batch, start_s, end_s, log_row))

    def _collect(self, oldest: Launched) -> Process:
        if oldest.end_s > self._env.now:
            yield Due(self._env, oldest.end_s - self._env.now, back_from(self._number))
        self._tell_time()
        self.drain_aborts(self._env.now)
        sampled, finished = self.scheduler.update(oldest.batch)
        for request in sampled:
            self._recorder.token(request, oldest.end_s)
        for request in finished:
            request.finish_s = oldest.end_s
            self._unfinished.discard(request)
            if self._on_finished:
                self._on_finished(request)
        self._hear_of_transfers(oldest)
        self._recorder.close_log_row(oldest.log_row, oldest.batch, finished, self.scheduler.kv.pool.num_free_blocks)

    @property
    def unreturned_rows(self) -> list[dict[str, Any]]:
        """Log rows of batches that are still on the device."""
        return [launched.log_row for launched in self._in_flight if launched.log_row is not None]

    def _hear_of_transfers(self, launched: Launched) -> None:
        """What the worker tells with a batch's output of loads and sends."""
        transfers, connector = self._modes.transfers, self.scheduler.connector
        if transfers is None or connector is None:
            return
        over = connector.reported(launched.start_s if transfers.reports_at_start else launched.end_s)
        told = [
            heard_of(job, self.scheduler, transfers, self._ended)
            for job in sorted(over, key=lambda job: job.name == "store")
        ]
        for what, *facts in told:
            sent = [self.scheduler.kv.pool.num_free_blocks] if what == "send_done" else []
            connector.events.append([self._env.now, what, *facts, *sent])

    def _ended(self, request: Request) -> None:
        """Without its KV."""
        request.finish_s = self._env.now
        if self._on_finished:
            self._on_finished(request)


def heard_of(
    job: Job, scheduler: Scheduler, transfers: Transfers, on_ended: Callable[[Request], object]
) -> Sequence[Any]:
    """What a transfer that is over means to the scheduler, in the recorder's words; a request may have ended with it."""
    request, name = job.request, job.request.request_id
    if job.name == "store":
        return "store_done", name, len(job.blocks)
    if job.name == "send":
        scheduler.kv.free(request)
        return "send_done", name
    if not (job.name == "recv" and request.script.recv_fails):
        scheduler.loaded(request)
        return "recv_done", name
    was_there = request.status is not RequestStatus.FINISHED
    scheduler.load_failed(request, recomputes=transfers.recomputes_failed)
    if was_there and request.status is RequestStatus.FINISHED:
        on_ended(request)
    return "recv_fail", name


def refusal(modes: Modes, unfinished: Collection[Request], num_answers: int) -> str | None:
    """Why a server with these limits and requests takes in none that asks for so many answers."""
    limit, token_limit = modes.max_num_queued_reqs, modes.max_num_queued_tokens
    if limit is not None and len(unfinished) + num_answers > limit:
        several = f" and {num_answers} answers asked for, of {limit}" if num_answers > 1 else ""
        return f"503: {len(unfinished)} requests were under way{several} (max_num_queued_reqs)"
    queued = sum(request.num_prompt_tokens for request in unfinished if request.first_token_s is None)
    if token_limit is not None and queued >= token_limit:
        return f"503: {queued} prompt tokens waited (max_num_queued_tokens {token_limit})"
    return None


def step_shape(batch: Batch) -> StepShape:
    """What the step-time model sees of a batch."""
    decodes = [row for row in batch.rows if row.decodes]
    chunks = [row for row in batch.rows if not row.decodes]
    return StepShape(
        num_decodes=len(decodes),
        decode_context_tokens=sum(row.num_computed_before + row.num_tokens for row in decodes) - batch.num_spared,
        chunks=tuple((row.num_tokens, row.num_computed_before) for row in chunks),
        num_sampled=sum(row.samples for row in batch.rows),
        num_drafts=sum(row.num_drafts for row in decodes),
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
