"""Naive data-parallel ranks with pipeline stages: each goes round the loop of vLLM's DPEngineCoreProc (v1/engine/core.py of 0.32) by itself.

A server's workers of one stage meet those of the other ranks before each step, and at its experts. Who launches a dummy batch waits for the answer
of its worker of the last stage, which gives answers in order: with async scheduling behind the tokens of its own batches, and without when that
worker, and so those of all ranks, have waited for the tokens of the batches before.
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import simpy

from sim.cluster.clients import AT_THEIR_TIMES, Clients
from sim.engine.config import SchedulerConfig
from sim.steptime.graphs import GraphDispatch
from sim.steptime.protocol import Agreement, StepShape
from sim.workload.trace import Trace
from tests.reference.arrivals import Due, back_from, called_at
from tests.reference.cluster import Served
from tests.reference.lockstep import serve
from tests.reference.modes import Modes
from tests.reference.recorder import Recorder
from tests.reference.replica import Process, step_shape
from tests.reference.request import Request
from tests.reference.scheduler import Batch, Scheduler
from tests.reference.waves import DUMMY_BATCH

Executing = Generator[simpy.Event, Any, bool]


class StagedTimes(NamedTuple):
    """Of each stage by a rank's part of a step and what ranks agreed on, and of its message to the next."""

    num_stages: int
    stage_s: Callable[[int, StepShape, Agreement | None], float]
    hop_s: Callable[[int, StepShape, Agreement | None], float]


class Step:
    """What all ranks launch together: `met` happens when all have, `done` when the last stage is through; None are dummies."""

    def __init__(self, ranks: "StagedRanks") -> None:
        self._ranks = ranks
        self._shapes: dict[int, StepShape] = {}
        self.batches: dict[int, Batch] = {}
        self.stages: list[tuple[float, float]] = []
        self.met, self.done = ranks.env.event(), ranks.env.event()

    def enter(self, rank: int, shape: StepShape, batch: Batch | None) -> None:
        self._shapes[rank] = shape
        if batch is not None:
            self.batches[rank] = batch
        if len(self._shapes) == len(self._ranks.ranks):
            self._run()

    def _run(self) -> None:
        ranks, env = self._ranks, self._ranks.env
        shapes = [self._shapes[rank] for rank in range(len(ranks.ranks))]
        agreed = None if ranks.dispatch is None else agreement(shapes, ranks.dispatch)
        rows = [row for batch in self.batches.values() for row in batch.rows]
        ready_s = max([env.now, *(ranks.sampled_s.get(row.request, env.now) for row in rows)])
        for stage in range(ranks.times.num_stages):
            begun_s = max(ready_s, ranks.free_s[stage])
            end_s = begun_s + max(ranks.times.stage_s(stage, shape, agreed) for shape in shapes)
            self.stages.append((begun_s, end_s))
            ranks.free_s[stage] = end_s
            arrivals_s = [end_s + ranks.times.hop_s(stage, self._shapes[rank], agreed) for rank in self.batches]
            ready_s = max([env.now, *arrivals_s])
        for row in rows:
            if row.samples:
                ranks.sampled_s[row.request] = self.stages[-1][1]
        for rank in self.batches:
            ranks.ranks[rank].recorder.ran(self.stages)
        self.met.succeed()
        env.process(self._end(self.stages[-1][1]))

    def _end(self, end_s: float) -> Process:
        yield Due(self._ranks.env, end_s - self._ranks.env.now, back_from(self._ranks.first))
        self.done.succeed()


class Launched(NamedTuple):
    """A batch in the queue of a rank; those without rows are in no step."""

    batch: Batch
    step: Step | None


class StagedRank:
    """A scheduler, its batch queue, and what has come since its last call."""

    def __init__(self, ranks: "StagedRanks", number: int, config: SchedulerConfig, modes: Modes) -> None:
        self._ranks = ranks
        self._number = number
        self._depth = modes.num_batches_in_flight or config.num_batches_in_flight
        self._num_usable_blocks = config.num_usable_blocks
        self._queue: deque[Launched] = deque()
        self.inbox: list[Request] = []
        self.scheduler = Scheduler(config, modes)
        self.recorder = Recorder()
        self.num_dummies = 0

    def submit(self, request: Request, others: Sequence[Request] = ()) -> None:
        self.inbox += [request, *others]
        if not self._ranks.woken.triggered:
            self._ranks.woken.succeed()

    @property
    def load(self) -> tuple[int, int]:
        return len(self.inbox) + self.scheduler.num_waiting, len(self.scheduler.running)

    @property
    def metrics(self) -> tuple[int, int, float]:
        return *self.load, 1.0 - self.scheduler.kv.pool.num_free_blocks / self._num_usable_blocks

    def run(self) -> Process:
        """`run_busy_loop`."""
        ranks = self._ranks
        while True:
            counter, is_over = 0, False
            yield from ranks.wave_begins()
            while not is_over:
                yield Due(ranks.env, 0, called_at(ranks.first + self._number))
                for request in self.inbox:
                    self.scheduler.add_request(request)
                self.inbox.clear()
                step = ranks.step(counter)
                executed = yield from self._step_with_batch_queue(step, counter % ranks.prefill_interval != 0)
                if not executed and self.scheduler.has_work:
                    yield ranks.env.timeout(ranks.idle_sleep_s)
                has_unfinished = self.scheduler.has_requests
                if not executed:
                    yield from self._execute_dummy_batch(step)
                counter += 1
                if counter % ranks.sync_interval == 0 or (counter == 1 and ranks.looks_at_once):
                    is_over = yield from ranks.look(has_unfinished)
            while self._queue:
                self._update_from(self._queue.popleft())

    def _step_with_batch_queue(self, step: Step, is_throttled: bool) -> Executing:
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
        if oldest.step is not None and not oldest.step.done.processed:
            yield oldest.step.done
        self._update_from(oldest)
        return executed

    def _launch(self, batch: Batch, step: Step) -> None:
        for row in batch.rows:
            if row.request.first_scheduled_s is None:
                row.request.first_scheduled_s = self._ranks.env.now
        self._queue.append(Launched(batch, step if batch.rows else None))
        self.recorder.preempted(batch)
        if batch.rows:
            self.recorder.launched(batch, step_shape(batch), self.scheduler)
            step.enter(self._number, step_shape(batch), batch)

    def _execute_dummy_batch(self, step: Step) -> Process:
        self.num_dummies += 1
        step.enter(self._number, DUMMY_BATCH, None)
        if not step.met.processed:
            yield step.met
        for earlier in self._ranks.steps[: self._ranks.steps.index(step)]:
            is_awaited = self._number in earlier.batches if self._ranks.is_async else bool(earlier.batches)
            if is_awaited and not earlier.done.processed:
                yield earlier.done

    def _update_from(self, launched: Launched) -> None:
        sampled, finished = self.scheduler.update(launched.batch)
        if launched.step is None:
            return
        end_s = launched.step.stages[-1][1]
        for request in sampled:
            self.recorder.token(request, end_s)
        for request in finished:
            request.finish_s = end_s
            self._ranks.finished(request)


class StagedRanks:
    """All ranks of a server, `all_steps`, and those of the present wave; `num_waves` are over."""

    def __init__(
        self,
        env: simpy.Environment,
        config: SchedulerConfig,
        times: StagedTimes,
        modes: Modes,
        num_ranks: int,
        *,
        sync_interval: int,
        looks_at_once: bool,
        prefill_interval: int,
        dispatch: GraphDispatch | None,
        first: int = 0,
    ) -> None:
        self.env = env
        self.first = first
        self.times = times
        self.idle_sleep_s = modes.idle_sleep_s
        self.is_async = config.engine.async_scheduling
        self.sync_interval = sync_interval
        self.looks_at_once = looks_at_once
        self.prefill_interval = prefill_interval
        self.dispatch = dispatch
        self.free_s = [env.now] * times.num_stages
        self.sampled_s: dict[Request, float] = {}
        self.steps: list[Step] = []
        self.all_steps: list[Step] = []
        self.woken = env.event()
        self._looked = env.event()
        self._unfinished: list[bool] = []
        self.ranks = [StagedRank(self, number, config, modes) for number in range(num_ranks)]
        self.num_waves = 0
        self.finished: Any = None

    def start(self) -> None:
        for rank in self.ranks:
            self.env.process(rank.run())

    @property
    def num_dummies(self) -> list[int]:
        return [rank.num_dummies for rank in self.ranks]

    def step(self, counter: int) -> Step:
        while counter >= len(self.steps):
            self.steps.append(Step(self))
            self.all_steps.append(self.steps[-1])
        return self.steps[counter]

    def wave_begins(self) -> Process:
        """Until a request comes to any of them."""
        if not any(rank.inbox for rank in self.ranks):
            yield self.woken

    def look(self, has_unfinished: bool) -> Executing:
        """The all-reduce: whether the wave is over."""
        looked = self._looked
        self._unfinished.append(has_unfinished)
        if len(self._unfinished) == len(self.ranks):
            is_over = not any(self._unfinished)
            if is_over:
                self.num_waves += 1
                self.steps = []
                self.woken = self.env.event()
            self._unfinished, self._looked = [], self.env.event()
            looked.succeed(is_over)
        is_over = yield looked
        return bool(is_over)


def agreement(shapes: Sequence[StepShape], dispatch: GraphDispatch) -> Agreement:
    """The least graph that any of them could run, padded to the most; nobody pads where one runs without."""
    found = [dispatch.dispatch(shape.num_tokens, is_uniform_decode=dispatch.is_uniform(shape)) for shape in shapes]
    graphs, most = [graph for graph, _ in found], max(num_tokens for _, num_tokens in found)
    if "none" in graphs:
        return Agreement("none", 0, sum(shape.num_tokens for shape in shapes))
    return Agreement("piecewise" if "piecewise" in graphs else "full", most, most * len(shapes))


def simulate_staged(
    trace: Trace,
    config: SchedulerConfig,
    times: StagedTimes,
    *,
    num_ranks: int,
    modes: Modes,
    router: str = "vllm_dp",
    clients: Clients = AT_THEIR_TIMES,
    sync_interval: int = 16,
    looks_at_once: bool = True,
    prefill_interval: int = 1,
    dispatch: GraphDispatch | None = None,
) -> tuple[Served, StagedRanks]:
    """Every step of every rank."""

    def make(env: simpy.Environment) -> StagedRanks:
        return StagedRanks(
            env,
            config,
            times,
            modes,
            num_ranks,
            sync_interval=sync_interval,
            looks_at_once=looks_at_once,
            prefill_interval=prefill_interval,
            dispatch=dispatch,
        )

    return serve(trace, config, make, num_ranks=num_ranks, router=router, clients=clients)
