"""Ranks in lock step behind vLLM's balancer, and clients that wait for them: one step after the other, every rank in every step.

The rules are those of `golden/RULES_SCALING.md`, section 7, and of vLLM's v1/worker/dp_utils.py; async scheduling is the batch queue
of v1/engine/core.py, whose calls all ranks make together.
"""

import math
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import numpy as np
import simpy

from sim.cluster.clients import AT_THEIR_TIMES, Clients
from sim.cluster.options import named
from sim.engine.config import SchedulerConfig
from sim.steptime.graphs import GraphDispatch
from sim.steptime.protocol import AgreedStepTime, Agreement, StepShape, StepTimeModel
from sim.workload.trace import Trace
from tests.reference.aborts import TakesAborts
from tests.reference.adapters import Adapters
from tests.reference.arrivals import Due, back_from, called_at
from tests.reference.clients import Senders
from tests.reference.cluster import Gateway, Served, send
from tests.reference.front_door import let_in, make_requests
from tests.reference.modes import PLAIN, Modes
from tests.reference.recorder import Recorder
from tests.reference.replica import step_shape
from tests.reference.request import Request
from tests.reference.routers import ROUTERS
from tests.reference.scheduler import Batch, Scheduler
from tests.reference.waves import DUMMY_BATCH


class Serving(Protocol):
    """Ranks that step together, which tell who has `finished`."""

    ranks: Any
    finished: Any

    def start(self) -> None: ...


RanksT = TypeVar("RanksT", bound=Serving)


class Rank(TakesAborts):
    """A scheduler, and what has come since its last step."""

    def __init__(self, ranks: "Ranks", config: SchedulerConfig, modes: Modes) -> None:
        super().__init__(ranks._env)
        self._ranks = ranks
        self._num_usable_blocks = config.num_usable_blocks
        self.scheduler = Scheduler(config, modes)
        self.recorder = Recorder()
        self._adapters = Adapters(modes.loras) if modes.loras else None
        self._alone: deque[tuple[Batch, float]] = deque()
        self._depth = config.num_batches_in_flight
        self._idle_sleep_s = modes.idle_sleep_s
        self.busy_until_s = self.next_call_s = 0.0

    def submit(self, request: Request, others: Sequence[Request] = ()) -> None:
        self.inbox += [request, *others]
        self.wake()

    def wake(self) -> None:
        if not self._ranks.woken.triggered:
            self._ranks.woken.succeed()

    def call(self, now_s: float, *, is_throttled: bool) -> Batch | None:
        """The scheduler's, which then hears what the worker told with an earlier batch without rows."""
        scheduler, connector = self.scheduler, self.scheduler.connector
        if connector is not None:
            connector.now_s = now_s
        is_called = scheduler.has_work if connector is not None else scheduler.has_requests
        batch = scheduler.schedule(is_throttled=is_throttled) if is_called else None
        self.hear()
        return batch

    def ready_s(self, met_s: float, free_s: float, batch: Batch | None) -> float:
        """When the host, which all have met by `met_s`, has what the batch needs, or a dummy batch."""
        connector = self.scheduler.connector
        has_rows = batch is not None and bool(batch.rows)
        if self._adapters is not None:
            met_s += self._adapters.wait_s(cast("Batch", batch)) if has_rows else self._adapters.dummy_s()
        if connector is not None and has_rows:
            start_s = max(met_s, free_s)
            begins_s = connector.begin(start_s)
            return begins_s if begins_s > start_s else met_s
        return met_s

    def rest(self, now_s: float, batch: Batch | None) -> float:
        """The call lasts as long as its lookups; a batch without rows goes to the worker alone, and the engine sleeps if there is still something to do: until when."""
        connector = self.scheduler.connector
        if connector is None:
            return now_s
        if batch is None:  # one that is in flight though its requests have ended is taken back before the dummy batch
            return max(now_s, self.busy_until_s)
        called_until_s = now_s + connector.waited_s
        if batch.rows:
            return called_until_s
        begins_s = self.begin_alone(batch, max(now_s, self.busy_until_s))
        return begins_s + self._idle_sleep_s if self.scheduler.has_work else called_until_s

    def begin_alone(self, batch: Batch, start_s: float) -> float:
        """A batch without rows goes to the worker."""
        connector = self.scheduler.connector
        assert connector is not None, "nobody has anything for the worker"
        begins_s = connector.begin(start_s)
        self._alone.append((batch, begins_s))
        if self._depth == 1:
            self.hear()
        return begins_s

    def hear(self) -> None:
        """What the worker told with the oldest batch without rows, if there is one."""
        if self._alone:
            batch, begun_s = self._alone.popleft()
            self.scheduler.update(batch)
            self.hear_of_transfers(begun_s)

    def hear_of_transfers(self, looked_s: float) -> None:
        connector = self.scheduler.connector
        if connector is not None:
            for job in connector.reported(looked_s):
                if job.name == "load":
                    self.scheduler.loaded(job.request)

    @property
    def polls(self) -> bool:
        """Whether it goes on while all pause."""
        return self.scheduler.connector is not None and (self.scheduler.has_work or bool(self._alone))

    def poll(self, now_s: float) -> None:
        """One call while all pause, and the sleep behind it."""
        scheduler, connector = self.scheduler, self.scheduler.connector
        assert connector is not None, "only those poll that transfer KV"
        connector.now_s = now_s
        if scheduler.has_work:
            is_full = len(self._alone) + 1 == self._depth
            self.begin_alone(scheduler.schedule(), now_s)
            if self._depth > 1 and (is_full or not scheduler.has_work):
                self.hear()
        else:
            self.hear()
        self.next_call_s = now_s + self._idle_sleep_s if scheduler.has_work else now_s

    @property
    def load(self) -> tuple[int, int]:
        return len(self.inbox) + self.scheduler.num_waiting, len(self.scheduler.running)

    @property
    def metrics(self) -> tuple[int, int, float]:
        return *self.load, 1.0 - self.scheduler.kv.pool.num_free_blocks / self._num_usable_blocks


class Launched(NamedTuple):
    """A step of all ranks; None for whoever had nothing to do."""

    batches: list[Batch | None]
    start_s: float
    end_s: float


class Ranks:
    """All ranks, and the steps in flight; `num_dummies` counts those of each rank, `num_waves` the waves that are over."""

    def __init__(
        self,
        env: simpy.Environment,
        config: SchedulerConfig,
        step_time: StepTimeModel,
        num_ranks: int,
        *,
        sync_interval: int,
        looks_at_once: bool,
        prefill_interval: int,
        dispatch: GraphDispatch | None,
        dbo: tuple[int, int] | None,
        modes: Modes = PLAIN,
        first: int = 0,
    ) -> None:
        modes = replace(modes, throttle_interval=prefill_interval if prefill_interval > 1 else 0)
        self._env = env
        self._first = first
        self._step_time = step_time
        self._sync_interval = sync_interval
        self._looks_at_once = looks_at_once
        self._prefill_interval = prefill_interval
        self._dispatch = dispatch
        self._dbo = dbo
        self._depth = config.num_batches_in_flight
        self._in_flight: deque[Launched] = deque()
        self._free_s = self._hosts_free_s = self._rested_s = env.now
        self.woken = env.event()
        self.ranks: Any = [Rank(self, config, modes) for _ in range(num_ranks)]
        self.num_dummies = [0] * num_ranks
        self.num_waves = 0
        self.num_split_steps = 0
        self.finished: Any = None

    def start(self) -> None:
        self._env.process(self.run())

    def run(self) -> Generator[simpy.Event, Any, None]:
        while True:
            yield from self._pause()
            counter, is_over = 0, False
            while not is_over:
                if self._rested_s > self._env.now:
                    yield self._env.timeout(self._rested_s - self._env.now)
                yield Due(self._env, 0, called_at(self._first))
                for rank in self.ranks:
                    for request in rank.inbox:
                        rank.scheduler.add_request(request)
                    rank.inbox.clear()
                    rank.drain_aborts(math.inf)
                self._launch(is_throttled=counter % self._prefill_interval != 0)
                counter += 1
                if len(self._in_flight) == self._depth:
                    step = self._in_flight.popleft()
                    yield Due(self._env, max(0.0, step.end_s - self._env.now), back_from(self._first))
                    self._collect(step)
                looks = counter % self._sync_interval == 0 or (counter == 1 and self._looks_at_once)
                is_over = looks and not any(rank.scheduler.has_requests for rank in self.ranks)
            self.num_waves += 1
            if not any(self._is_awaited(step) for step in self._in_flight):
                self._in_flight.clear()

    def _is_awaited(self, step: "Launched") -> bool:
        """Whether ranks whose KV is moved have a batch in it, though nobody has work any more."""
        return any(batch and rank.scheduler.connector for rank, batch in zip(self.ranks, step.batches, strict=True))

    def _pause(self) -> Generator[simpy.Event, Any, None]:
        """Until a request comes; who transfers KV polls meanwhile."""
        for rank in self.ranks:
            rank.next_call_s = max(self._env.now, self._rested_s)
        while not any(rank.inbox or rank.aborts for rank in self.ranks):
            if self._in_flight:
                step = self._in_flight.popleft()
                yield Due(self._env, max(0.0, step.end_s - self._env.now), back_from(self._first))
                self._collect(step)
                continue
            self.woken = self._env.event()
            next_s = min((rank.next_call_s for rank in self.ranks if rank.polls), default=math.inf)
            if next_s == math.inf:
                yield self.woken
                continue
            yield self.woken | self._env.timeout(max(0.0, next_s - self._env.now))
            yield Due(self._env, 0, called_at(self._first))
            for rank in self.ranks:
                if not any(other.inbox for other in self.ranks) and rank.polls and rank.next_call_s <= self._env.now:
                    rank.poll(self._env.now)

    def _launch(self, *, is_throttled: bool) -> None:
        batches: list[Batch | None] = []
        for number, rank in enumerate(self.ranks):
            batch = rank.call(self._env.now, is_throttled=is_throttled)
            batches.append(batch)
            self.num_dummies[number] += batch is None or not batch.rows
        shapes = [step_shape(batch) if batch and batch.rows else DUMMY_BATCH for batch in batches]
        agreed = self._agreement(shapes)
        self.num_split_steps += agreed is not None and agreed.num_ubatches == 2
        self._rested_s = max(rank.rest(self._env.now, batch) for rank, batch in zip(self.ranks, batches, strict=True))
        met_s = max(self._rested_s, self._hosts_free_s)
        self._hosts_free_s = max(
            [rank.ready_s(met_s, self._free_s, batch) for rank, batch in zip(self.ranks, batches, strict=True)]
        )
        start_s = max(self._hosts_free_s, self._free_s)
        seconds = [self._step_s(shape, agreed) for shape in shapes]
        self._free_s = start_s + max(seconds)
        for rank, batch, shape in zip(self.ranks, batches, shapes, strict=True):
            if batch is None:
                continue
            if batch.rows:
                rank.busy_until_s = self._free_s
            for row in batch.rows:
                if row.request.first_scheduled_s is None:
                    row.request.first_scheduled_s = self._env.now
            rank.recorder.preempted(batch)
            if batch.rows:
                rank.recorder.step(batch, shape, [(start_s, self._free_s)], rank.scheduler)
        kept = [
            batch if batch and (batch.rows or rank.scheduler.connector is None) else None
            for rank, batch in zip(self.ranks, batches, strict=True)
        ]
        self._in_flight.append(Launched(kept, start_s, self._free_s))

    def _step_s(self, shape: StepShape, agreed: Agreement | None) -> float:
        if agreed is None:
            return self._step_time.step_s(shape)
        return cast("AgreedStepTime", self._step_time).agreed_s(shape, agreed)

    def _agreement(self, shapes: Sequence[StepShape]) -> Agreement | None:
        if self._dispatch is None:
            return None
        graphs = [self._dispatch.dispatch(s.num_tokens, is_uniform_decode=self._dispatch.is_uniform(s)) for s in shapes]
        most = max(padded for _, padded in graphs)
        if self._splits(shapes, most):
            all_full = all(graph == "full" for graph, _ in graphs)
            return Agreement("full" if all_full else "none", most, most * len(shapes), 2)
        if any(graph == "none" for graph, _ in graphs):
            return Agreement("none", 0, sum(shape.num_tokens for shape in shapes))
        if any(graph == "piecewise" for graph, _ in graphs):
            return Agreement("piecewise", most, most * len(shapes))
        is_captured_split = self._dbo is not None and self._dispatch.mode != "FULL" and most >= self._dbo[0]
        return Agreement("none" if is_captured_split else "full", most, most * len(shapes))

    def _splits(self, shapes: Sequence[StepShape], num_padded: int) -> bool:
        """vLLM's v1/worker/dp_utils.py: all ranks vote for it, and nobody's last micro-batch is all padding."""
        if self._dbo is None or self._dispatch is None:
            return False
        of_decodes, of_others = self._dbo
        uniform = [self._dispatch.is_uniform(shape) for shape in shapes]
        votes = [
            shape.num_tokens >= (of_decodes if own else of_others) for shape, own in zip(shapes, uniform, strict=True)
        ]
        return all(votes) and not any(num_padded // 2 >= shape.num_tokens for shape in shapes)

    def _collect(self, step: Launched) -> None:
        for rank, batch in zip(self.ranks, step.batches, strict=True):
            if batch is None:
                continue
            if batch.rows:  # vLLM takes one without rows back as the next call begins, which hears of aborts itself
                rank.drain_aborts(self._env.now)
            sampled, finished = rank.scheduler.update(batch)
            for request in sampled:
                rank.recorder.token(request, step.end_s)
            for request in finished:
                request.finish_s = step.end_s
                self.finished(request)
            rank.hear_of_transfers(step.start_s)


def simulate_lock_step(
    trace: Trace,
    config: SchedulerConfig,
    step_time: StepTimeModel,
    *,
    num_ranks: int,
    router: str = "vllm_dp",
    clients: Clients = AT_THEIR_TIMES,
    sync_interval: int = 16,
    looks_at_once: bool = True,
    prefill_interval: int = 1,
    dispatch: GraphDispatch | None = None,
    dbo: tuple[int, int] | None = None,
    modes: Modes = PLAIN,
) -> tuple[Served, Ranks]:
    """Every step of every rank."""

    def make(env: simpy.Environment) -> Ranks:
        return Ranks(
            env,
            config,
            step_time,
            num_ranks,
            sync_interval=sync_interval,
            looks_at_once=looks_at_once,
            prefill_interval=prefill_interval,
            dispatch=dispatch,
            dbo=dbo,
            modes=modes,
        )

    return serve(trace, config, make, num_ranks=num_ranks, router=router, clients=clients)


def serve(
    trace: Trace,
    config: SchedulerConfig,
    make: Callable[[simpy.Environment], RanksT],
    *,
    num_ranks: int,
    router: str,
    clients: Clients,
) -> tuple[Served, RanksT]:
    """All that ranks do behind a balancer."""
    if clients.users:
        trace = replace(trace, arrival_s=np.zeros(len(trace)))
    env = simpy.Environment(initial_time=min(0.0, float(trace.arrival_s[0])))
    requests = make_requests(trace, config)
    name, options = named("router", router)
    chooser = ROUTERS[name](trace, config, num_ranks, Random(0), options)  # noqa: S311
    gateway = Gateway(env, chooser, len(let_in(requests)), None)
    senders = Senders(env, gateway.submit, clients.max_concurrency)
    senders.expect(let_in(requests))
    ranks = make(env)

    def finished(request: Request) -> None:
        gateway.one_answered()
        senders.tokens_back(request)

    ranks.finished = finished
    gateway.replicas = ranks.ranks
    ranks.start()
    if chooser.scrape_interval_s and num_ranks > 1:
        env.process(gateway.scrape(chooser.scrape_interval_s))
    send(env, senders, trace, requests, clients)
    env.run()
    parts = [rank.recorder.records(requests, rank.scheduler) for rank in ranks.ranks]
    return Served(parts, [gateway.chosen.get(request.index, -1) for request in requests]), ranks
