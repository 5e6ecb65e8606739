"""Naive data-parallel ranks that hand KV over: each goes round the loop of vLLM's DPEngineCoreProc (v1/engine/core.py of 0.32) by itself.

Aborts are heard of as a call begins, and before a batch's tokens are taken in (`_process_input_queue`, `_process_aborts_queue`). A server that is lost is
interrupted: none of its ranks does anything more.

All of them make their calls at the same instants, no call runs ahead of the device by more than the batch queue holds, and a step begins when
every rank has launched its part of it: a batch, or a dummy. Their hosts meet before they make that ready.
"""

import math
from collections import deque
from collections.abc import Callable, Generator, Sequence
from copy import copy
from typing import Any, NamedTuple

import simpy

from sim.engine.config import SchedulerConfig
from sim.steptime.protocol import StepShape, StepTimeModel
from tests.reference.aborts import TakesAborts
from tests.reference.adapters import Adapters
from tests.reference.arrivals import Due, back_from, called_at
from tests.reference.modes import Modes
from tests.reference.replica import Process, heard_of, step_shape
from tests.reference.request import Request
from tests.reference.scheduler import Batch, Scheduler
from tests.reference.waves import DUMMY_BATCH

Executing = Generator[simpy.Event, Any, bool]


class Ran(NamedTuple):
    """What a rank did in a step: tokens, 0 of a dummy."""

    start_s: float
    end_s: float
    num_tokens: int


class Step:
    """One step of all ranks, which begins when all have entered; then it `begins` for those that told what they do then."""

    def __init__(self, ranks: "HandingRanks") -> None:
        self._ranks = ranks
        self._shapes: list[StepShape] = []
        self._preparing_s: list[float] = []
        self._begins: list[Callable[[float, float], None]] = []
        self.done = ranks.env.event()

    def call(self) -> None:
        """All ranks call their schedulers for it now: so fast are their devices when it begins, also if that is after a sleep."""
        self._step_time = copy(self._ranks.step_time)

    def enter(self, shape: StepShape, preparing_s: float, begins: Callable[[float, float], None]) -> None:
        if self._ranks.is_lost:
            return
        self._shapes.append(shape)
        self._preparing_s.append(preparing_s)
        self._begins.append(begins)
        if len(self._shapes) == len(self._ranks.ranks):
            self._ranks.env.process(self._run())

    def _run(self) -> Process:
        ranks, env = self._ranks, self._ranks.env
        if ranks.is_lost:
            return
        ranks.prepared_s = max(env.now, ranks.prepared_s) + max(self._preparing_s)
        start_s = max(ranks.prepared_s, ranks.free_s)
        ranks.free_s = start_s + max(self._step_time.step_s(shape) for shape in self._shapes)
        for begins in self._begins:
            begins(start_s, ranks.free_s)
        yield Due(env, ranks.free_s - env.now, back_from(ranks.first))
        if not ranks.is_lost:
            self.done.succeed()


class Launched(NamedTuple):
    """A batch in the queue of a rank; those without rows are in no step. `seen_s` is when the worker looked for what had come."""

    batch: Batch
    step: Step | None
    seen_s: list[float]


class HandingRank(TakesAborts):
    """A scheduler, its batch queue, and what has come since its last call."""

    def __init__(self, ranks: "HandingRanks", config: SchedulerConfig, modes: Modes) -> None:
        super().__init__(ranks.env)
        self._ranks = ranks
        self._depth = config.num_batches_in_flight
        self._num_usable_blocks = config.num_usable_blocks
        self._transfers = modes.transfers
        self._queue: deque[Launched] = deque()
        self.scheduler = Scheduler(config, modes)
        self._adapters = Adapters(modes.loras) if modes.loras else None
        self.ran: list[Ran] = []

    def submit(self, request: Request, _others: Sequence[Request] = ()) -> None:
        self.inbox.append(request)
        self.wake()

    def wake(self) -> None:
        if not self._ranks.woken.triggered:
            self._ranks.woken.succeed()

    @property
    def engines(self) -> list["HandingRank"]:
        """Those behind its address, where it has one."""
        return [self]

    @property
    def has_work(self) -> bool:
        """Whether it goes round although all pause."""
        return self.scheduler.has_work or bool(self._queue)

    @property
    def load(self) -> tuple[int, int]:
        return len(self.inbox) + self.scheduler.num_waiting, len(self.scheduler.running)

    @property
    def metrics(self) -> tuple[int, int, float]:
        return *self.load, 1.0 - self.scheduler.kv.pool.num_free_blocks / self._num_usable_blocks

    def go_round(self, step: Step | None, *, is_throttled: bool) -> Process:
        """Once through `run_busy_loop`; no `step` while all pause."""
        for request in self.inbox:
            self.scheduler.add_request(request)
        self.inbox.clear()
        self.drain_aborts(math.inf)
        executed = yield from self._process_engine_step(step, is_throttled=is_throttled)
        if not executed and step is not None:
            preparing_s = self._adapters.dummy_s() if self._adapters else 0.0
            step.enter(DUMMY_BATCH, preparing_s, lambda start_s, end_s: self.ran.append(Ran(start_s, end_s, 0)))

    def _process_engine_step(self, step: Step | None, *, is_throttled: bool) -> Executing:
        executed = yield from self._step_with_batch_queue(step, is_throttled=is_throttled)
        if not executed and self.scheduler.has_work:
            yield self._ranks.env.timeout(self._ranks.idle_sleep_s)
        return executed

    def _step_with_batch_queue(self, step: Step | None, *, is_throttled: bool) -> Executing:
        executed = False
        if self.scheduler.has_work:
            batch = self.scheduler.schedule(is_throttled=is_throttled)
            executed = bool(batch.rows)
            self._launch(batch, step)
            if len(self._queue) < self._depth and (executed or self.scheduler.has_work):
                return executed
        elif not self._queue:
            return False
        oldest = self._queue.popleft()
        if oldest.step is not None:
            yield oldest.step.done
        self._update_from(oldest)
        return executed

    def _launch(self, batch: Batch, step: Step | None) -> None:
        env, connector = self._ranks.env, self.scheduler.connector
        assert connector is not None, "ranks that hand KV over"
        for row in batch.rows:
            if row.request.first_scheduled_s is None:
                row.request.first_scheduled_s = env.now
        launched = Launched(batch, step if batch.rows else None, [])
        self._queue.append(launched)

        def begins(start_s: float, end_s: float) -> None:
            launched.seen_s.append(start_s)
            connector.begin(start_s)
            if batch.rows:
                self.ran.append(Ran(start_s, end_s, batch.num_tokens))

        if batch.rows:
            assert step is not None, "nobody has work while all pause"
            step.enter(step_shape(batch), self._adapters.wait_s(batch) if self._adapters else 0.0, begins)
        else:
            begins(env.now, env.now)

    def _update_from(self, launched: Launched) -> None:
        env, connector = self._ranks.env, self.scheduler.connector
        assert connector is not None, "ranks that hand KV over"
        assert self._transfers is not None, "ranks that hand KV over"
        connector.now_s = env.now
        # One without rows is taken back as the call begins, which has heard of aborts itself.
        if launched.step is not None:
            self.drain_aborts(env.now)
        sampled, finished = self.scheduler.update(launched.batch)
        for request in sampled:
            if request.first_token_s is None:
                request.first_token_s = env.now
        for request in finished:
            request.finish_s = env.now
            self._ranks.on_finished(request)
        for job in connector.reported(launched.seen_s[0]):
            heard_of(job, self.scheduler, self._transfers, self._ended)

    def _ended(self, request: Request) -> None:
        """Without its KV."""
        request.finish_s = self._ranks.env.now
        self._ranks.on_finished(request)


class HandingRanks:
    """All ranks of a server; `num_waves` are over."""

    def __init__(
        self,
        env: simpy.Environment,
        config: SchedulerConfig,
        step_time: StepTimeModel,
        modes: Modes,
        num_ranks: int,
        on_finished: Callable[[Request], Any],
        *,
        sync_interval: int,
        looks_at_once: bool,
        prefill_interval: int = 1,
        first: int,
    ) -> None:
        self.env = env
        self.first = first
        self.step_time = step_time
        self.idle_sleep_s = modes.idle_sleep_s
        self.on_finished = on_finished
        self.free_s = self.prepared_s = env.now
        self.woken = env.event()
        self.is_lost = False
        self.ranks = [HandingRank(self, config, modes) for _ in range(num_ranks)]
        self.num_waves = 0
        self._depth = config.num_batches_in_flight
        self._sync_interval = sync_interval
        self._looks_at_once = looks_at_once
        self._prefill_interval = prefill_interval

    def run(self) -> Process:
        try:
            yield from self._serve()
        except simpy.Interrupt:
            self.is_lost = True

    def _serve(self) -> Process:
        while True:
            yield from self._pause()
            counter, is_over = 0, False
            in_flight: deque[Step] = deque()
            while not is_over:
                step = Step(self)
                in_flight.append(step)
                yield from self._together(step, is_throttled=counter % self._prefill_interval != 0)
                if len(in_flight) == self._depth:
                    oldest = in_flight.popleft()
                    if not oldest.done.processed:
                        yield oldest.done
                counter += 1
                looks = counter % self._sync_interval == 0 or (counter == 1 and self._looks_at_once)
                is_over = looks and not any(rank.scheduler.has_requests for rank in self.ranks)
            self.num_waves += 1

    def _pause(self) -> Process:
        """Until a request comes; ranks that hold KV for others poll."""
        while not any(rank.inbox for rank in self.ranks):
            if any(rank.has_work or rank.aborts for rank in self.ranks):
                yield Due(self.env, 0, called_at(self.first))
                if not any(rank.inbox for rank in self.ranks):
                    yield from self._together(None, is_throttled=False)
            else:
                self.woken = self.env.event()
                yield self.woken

    def _together(self, step: Step | None, *, is_throttled: bool) -> Process:
        yield Due(self.env, 0, called_at(self.first))
        if step is not None:
            step.call()
        rounds = [self.env.process(rank.go_round(step, is_throttled=is_throttled)) for rank in self.ranks]
        yield self.env.all_of(rounds)
