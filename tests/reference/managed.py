"""A naive fleet that changes: replicas start, drain and are lost, and a gateway keeps, sends, aborts and retries requests.

Everything is looked up anew from lists of spots and jobs; what is pure (policies, drawn times) is the product's own.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any, NamedTuple, cast

import numpy as np
import simpy
from simpy.events import EventPriority

from sim.cluster.autoscaling.autoscaler import Autoscaler, Observed, Shown
from sim.cluster.backoff import backoff_s
from sim.cluster.circuit_breaker import Circuit, CircuitBreaker
from sim.cluster.clients import AT_THEIR_TIMES, Clients
from sim.cluster.dynamics import Dynamics
from sim.cluster.faults import Fault
from sim.cluster.lives import Life
from sim.engine.config import SchedulerConfig
from sim.engine.records import Records, RequestRecords
from sim.steptime.protocol import AgreedStepTime, Agreement, StepShape, StepTimeModel
from sim.workload.trace import Trace
from tests.reference.arrivals import ANSWERED, FLEET, RETRY, Due
from tests.reference.clients import Senders
from tests.reference.cluster import send
from tests.reference.front_door import answers, let_in, make_requests
from tests.reference.modes import PLAIN, Modes
from tests.reference.recorder import Recorder
from tests.reference.replica import Process, Replica
from tests.reference.request import Request
from tests.reference.scheduler import Scheduler


class Paced:
    """Step times that a slow node multiplies."""

    def __init__(self, model: StepTimeModel) -> None:
        self._model = model
        self.factors: tuple[float, ...] = ()

    def step_s(self, shape: StepShape) -> float:
        product = 1.0
        for factor in self.factors:
            product *= factor
        return self._model.step_s(shape) * product

    def agreed_s(self, shape: StepShape, agreed: Agreement) -> float:
        product = 1.0
        for factor in self.factors:
            product *= factor
        return cast("AgreedStepTime", self._model).agreed_s(shape, agreed) * product

    def slow_no_more(self, factor: float) -> None:
        left = list(self.factors)
        left.remove(factor)
        self.factors = tuple(left)

    def decode_curve(self, num_decodes: int) -> Any:
        raise NotImplementedError


@dataclass(eq=False)
class Job:
    """A request of the trace: its attempt under way, where that is, and what is known of attempts before.

    `sent_to` is the entry of the spot that was chosen.
    """

    attempt: Request
    came_s: float
    spot: "Spot | None" = None
    sent_to: Any = None
    num_lost: int = 0
    num_kept: int = 0
    first: Request | None = None  # the attempt whose first token stands
    outcome: str = ""  # completed, rejected: why, failed: why
    is_queued: bool = False
    where: int = -1


@dataclass(eq=False)
class Spot:
    """A place for a replica and what is in it; `plan` is the number of the last thing that was begun there."""

    number: int
    step_time: Paced
    pool: int = 0
    start_up_s: float = 0.0
    state: str = "empty"
    replica: Replica | None = None
    process: simpy.Process | None = None
    plan: int = 0
    noticed_s: float = -1.0
    started_s: float = 0.0
    ready_s: list[float] = field(default_factory=list)
    lost_s: list[float] = field(default_factory=list)
    recorders: list[tuple[Recorder, Replica]] = field(default_factory=list)


class Pool(NamedTuple):
    """Equal replicas, with the fleet's configuration."""

    step_time: StepTimeModel
    num_replicas: int
    start_up_s: float


class ManagedFleet:
    """Spots and jobs; `on_end` is told of each request that ends. A spot has a `kind` of thing in it."""

    kind = "replica"

    def __init__(
        self,
        env: simpy.Environment,
        config: SchedulerConfig,
        pools: Sequence[Pool],
        router: str,
        requests: list[Request],
        dynamics: Dynamics,
        *,
        seed: int,
        modes: Modes = PLAIN,
    ) -> None:
        self.modes = modes
        self.env, self.config, self.router, self.dynamics = env, config, router, dynamics
        self.num_left = sum(request.rejected is None for request in requests)
        self.pristine = {request.index: again(request) for request in requests}
        self.on_end: Callable[[Request], None] = lambda _request: None
        self.rng, self.draws = Random(f"retries {seed}"), Random(seed)  # noqa: S311
        self.chosen: list[Spot] = []
        self.jobs: dict[int, Job] = {}
        self.queue: list[Job] = []
        self.order: list[Job] = []  # jobs at replicas, as they were sent
        self.lives: list[Life] = []
        self.answers: list[tuple[float, Job, int]] = []
        self.is_due = False
        self.spots: list[Spot] = []
        first: list[Spot] = []
        for number, pool in enumerate(pools):
            policy = dynamics.autoscale.get(number)
            count = policy.clipped(pool.num_replicas) if policy else pool.num_replicas
            for place in range(max(count, policy.max if policy else 0)):
                self.spots.append(Spot(len(self.spots), Paced(pool.step_time), number, pool.start_up_s))
                if place < count:
                    first.append(self.spots[-1])
        circuit = dynamics.recovery.circuit
        self.breakers = [CircuitBreaker(circuit) for spot in self.spots for _ in self.entries(spot)] if circuit else []
        for spot in first:
            spot.started_s = env.now
            self.make_ready(spot)
        for place, fault in enumerate(dynamics.faults):
            for spot in self.spots:
                env.process(self.fail_again_and_again(spot, fault, fault.outages(spot.number, seed, place)))
        for number, policy in dynamics.autoscale.items():
            env.process(self.scale(number, policy.autoscaler()))

    def at(self, after_s: float, kind: EventPriority, act: Callable[[], object]) -> None:
        """Have something done, in the order in which it was asked for."""

        def happened(_event: simpy.Event) -> None:
            act()

        event = Due(self.env, after_s, kind)
        assert event.callbacks is not None
        event.callbacks.append(happened)

    # -- requests ----------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        job = self.jobs[request.index] = Job(request, self.env.now)
        limits = self.dynamics.admission
        waiting = len(self.queue) + sum(self.load(spot)[0] for spot in self.seeming())
        if limits.max_queued is not None and waiting >= limits.max_queued:
            self.end(job, f"rejected: {limits.max_queued} requests were waiting")
            return
        if limits.timeout_s is not None:
            self.at(limits.timeout_s, FLEET, lambda: self.time_out(job))
        if limits.queue_timeout_s is not None:
            self.at(limits.queue_timeout_s, FLEET, lambda: self.queue_out(job))
        self.queue.append(job)
        self.dispatch()

    def seeming(self) -> list[Spot]:
        """Spots that the gateway would send to."""
        hidden = [spot for spot in self.spots if spot.state in {"lost", "starting"} and self.env.now < spot.noticed_s]
        return [spot for spot in self.spots if spot.replica and (spot.state == "ready" or spot in hidden)]

    def dispatch(self) -> None:
        limit = self.dynamics.admission.max_concurrent
        while self.queue and (limit is None or len(self.order) < limit):
            entries = [entry for entry in self.unbroken() if self.answers_requests(entry)]
            if not entries:
                return
            by_priority = self.dynamics.admission.order == "priority"
            job = min(self.queue, key=lambda job: job.attempt.priority) if by_priority else self.queue[0]
            self.queue.remove(job)
            self.send(job, entries)

    def entries(self, spot: Spot) -> Sequence[Any]:
        """Where requests are sent to a spot: it has but one, which is itself."""
        return [spot]

    def engine_numbers(self, spot: Spot) -> range:
        """Those of the engines there, in the fleet."""
        return range(spot.number, spot.number + 1)

    def engines_at(self, entry: Any) -> Sequence[Any]:
        return [entry.replica]

    def spot_of(self, entry: Any) -> Spot:
        found: Spot = entry
        return found

    def unbroken(self) -> list[Any]:
        return [
            entry
            for spot in self.seeming()
            for entry in self.entries(spot)
            if not self.breakers or self.breakers[entry.number].state(self.env.now) is not Circuit.OPEN
        ]

    def answers_requests(self, spot: Spot) -> bool:  # noqa: ARG002 - all do
        return True

    def send(self, job: Job, entries: list[Any]) -> None:
        request = job.attempt
        for answer in answers([request]):
            answer.arrival_s = self.env.now
        entry = self.choose(
            entries, self.chosen, self.draws, lambda entry: sum(job.sent_to is entry for job in self.order)
        )
        self.chosen.append(entry)
        spot = self.spot_of(entry)
        job.spot, job.sent_to, job.where = spot, entry, spot.number
        self.order.append(job)
        if spot.state == "ready":
            self.hand(job)
        else:
            self.lose_jobs(spot, [job])

    def hand(self, job: Job) -> None:
        """Whoever is at the entry that was chosen gets it."""
        self.submit_at(job.sent_to, job.attempt)

    def submit_at(self, entry: Any, request: Request) -> None:
        assert entry.replica
        entry.replica.submit(request, request.others)

    def abort_at(self, entry: Any, request: Request, reason: str) -> None:
        """All answers that have not come."""
        for answer in answers([request]):
            if answer.finish_s is None:
                entry.replica.abort(answer, reason)

    def choose(self, spots: list[Any], chosen: list[Any], draws: Random, num_in_flight: Callable[[Any], int]) -> Any:
        """By the router's rule, among the entries that there are, given those chosen before."""
        alike = [spot for spot in self.spots if self.answers_requests(spot) == self.answers_requests(spots[0])]
        if sum(len(self.entries(spot)) for spot in alike) == 1:
            return spots[0]
        if self.router == "random":
            return spots[draws.randrange(len(spots))]
        if self.router == "round_robin":
            return min(spots, key=lambda spot: max((n for n, s in enumerate(chosen) if s is spot), default=-1))
        if self.router == "power_of_two":
            if len(spots) == 1:
                return spots[0]
            first = draws.randrange(len(spots))
            others = [spot for spot in spots if spot is not spots[first]]
            second = others[draws.randrange(len(others))]
            counts = [num_in_flight(spot) for spot in (spots[first], second)]
            return spots[first] if counts[0] <= counts[1] else second
        last = chosen[-1].number if chosen else -1
        in_turn = sorted(spots, key=lambda spot: (spot.number <= last, spot.number))
        loads = {spot: self.load(spot) for spot in in_turn}
        return min(in_turn, key=lambda spot: 4 * loads[spot][0] + loads[spot][1])

    def load(self, spot: Spot) -> tuple[int, int]:
        """A lost replica has none."""
        return spot.replica.load if spot.replica and spot.state == "ready" else (0, 0)

    def dispatch_soon(self) -> None:
        if self.queue and not self.is_due:
            self.is_due = True
            self.at(0, ANSWERED, self.dispatch_due)

    def dispatch_due(self) -> None:
        self.is_due = False
        self.dispatch()

    def finished(self, spot: Spot, request: Request) -> None:
        first = request.first or request
        job = self.jobs[first.index]
        if job.outcome or any(answer.finish_s is None for answer in answers([first])):
            return
        self.leave(job)
        if self.breakers:
            self.breakers[job.sent_to.number].succeeded(self.env.now)
        self.answers.append((self.env.now, job, spot.number))
        self.end(job, "completed")
        self.give_back(spot)
        self.dispatch_soon()

    def refused(self, spot: Spot, request: Request) -> None:
        """It is nobody's fault, and nobody tries again."""
        job = self.jobs[request.index]
        self.leave(job)
        self.end(job, f"{'failed' if job.num_lost else 'rejected'}: {request.rejected}")
        if not job.num_lost:
            job.where = -1
        self.give_back(spot)
        self.dispatch_soon()

    def where(self, job: Job) -> int:
        """The number of the replica that had it last."""
        return job.where

    def leave(self, job: Job) -> None:
        self.order.remove(job)
        job.spot = None

    def lose_jobs(self, spot: Spot, jobs: list[Job]) -> None:
        for job in jobs:
            self.leave(job)
            self.blame(job.sent_to)
            self.lose_job(job, f"{self.kind} {spot.number} was lost")
        self.dispatch_soon()

    def lose_kv(self, spot: Spot, request: Request) -> None:
        """An attempt has ended, for its KV could not be had."""
        job, request.finish_s = self.jobs[request.index], None
        if not job.outcome:
            self.forget_at(job.sent_to, request)
            self.leave(job)
            self.lose_job(job, "its KV was lost")
        self.give_back(spot)
        self.dispatch_soon()

    def blame(self, entry: Any) -> None:
        """The breaker of an entry hears of a loss."""
        if self.breakers and self.breakers[entry.number].state(self.env.now) is not Circuit.OPEN:
            self.breakers[entry.number].failed(self.env.now)
            if self.breakers[entry.number].state(self.env.now) is Circuit.OPEN:
                self.at(self.dynamics.recovery.circuit_open_s, FLEET, self.dispatch_soon)

    def lose_job(self, job: Job, reason: str) -> None:
        """Its attempt has come to nothing."""
        recovery = self.dynamics.recovery
        job.num_lost += 1
        if recovery.lost == "fail" or job.num_lost > recovery.retries:
            retries = f" after {job.num_lost - 1} retries" if job.num_lost > 1 else ""
            self.end(job, f"failed: {reason}{retries}")
            return
        before = job.attempt
        if recovery.lost == "resume" and not before.others:
            if before.num_output_tokens and job.first is None:
                job.first = before
            job.num_kept += before.num_output_tokens
        job.attempt = again(self.pristine[before.index])
        job.attempt.num_prompt_tokens += job.num_kept
        job.attempt.max_tokens -= job.num_kept
        self.at(backoff_s(job.num_lost - 1, recovery, self.rng), RETRY, partial(self.try_again, job))

    def try_again(self, job: Job) -> None:
        if not job.outcome:
            self.queue.append(job)
            self.dispatch()

    def time_out(self, job: Job) -> None:
        if job.outcome:
            return
        reason = f"not answered within {self.dynamics.admission.timeout_s:g} s"
        if job in self.queue:
            self.queue.remove(job)
        spot = job.spot
        if spot is not None:
            self.leave(job)
            self.abort(job, reason)
            self.give_back(spot)
        self.end(job, f"failed: {reason}")
        self.dispatch_soon()

    def forget_at(self, entry: Any, *given_up: Request) -> None:
        """Whoever chose an engine behind the entry hears that these have not come and will not."""

    def abort(self, job: Job, reason: str) -> None:
        self.abort_at(job.sent_to, job.attempt, reason)

    def queue_out(self, job: Job) -> None:
        if job in self.queue and not job.num_lost:
            self.queue.remove(job)
            self.end(job, f"rejected: waited {self.dynamics.admission.queue_timeout_s:g} s at the gateway")

    def end(self, job: Job, outcome: str) -> None:
        job.outcome = outcome
        self.num_left -= 1
        self.on_end(job.attempt)

    # -- replicas ----------------------------------------------------------------------------------------------------

    def make_ready(self, spot: Spot) -> None:
        spot.plan += 1
        spot.state = "ready"
        spot.ready_s.append(self.env.now)
        self.fill(spot)
        self.dispatch_soon()

    def fill(self, spot: Spot) -> None:
        """With a fresh replica."""
        recorder = Recorder()
        spot.replica = replica = self.replica(spot, recorder)
        spot.recorders.append((recorder, replica))
        spot.process = self.env.process(until_interrupted(replica))

    def replica(self, spot: Spot, recorder: Recorder) -> Replica:
        return Replica(
            self.env,
            self.config,
            spot.step_time,
            recorder,
            number=spot.number,
            modes=self.modes.with_limits_of(self.config.engine),
            on_finished=lambda request: self.finished(spot, request),
            on_refused=lambda request: self.refused(spot, request),
        )

    def start(self, spot: Spot, after_s: float) -> None:
        spot.plan += 1
        spot.state = "lost" if after_s else "starting"
        self.env.process(self.starting(spot, spot.plan, after_s))

    def starting(self, spot: Spot, plan: int, after_s: float) -> Process:
        if after_s:
            yield Due(self.env, after_s, FLEET)
            if spot.plan != plan:
                return
            spot.state = "starting"
        yield Due(self.env, spot.start_up_s, FLEET)
        if spot.plan == plan:
            self.make_ready(spot)

    def lose(self, spot: Spot, for_s: float) -> None:
        state = spot.state
        if state not in {"ready", "starting", "draining"}:
            return
        jobs = []
        if state != "starting":
            self.stop(spot)
            jobs = [job for job in self.order if job.spot is spot]
            spot.lost_s.append(self.env.now)
        if state == "draining":
            spot.plan += 1
        else:
            self.start(spot, for_s)
        recovery = self.dynamics.recovery
        if state == "ready":
            spot.noticed_s = recovery.noticed_s(self.env.now)
        self.lose_jobs(spot, jobs)
        self.give_back(spot)

    def stop(self, spot: Spot) -> None:
        """What is there is lost."""
        assert spot.process
        assert spot.replica
        spot.process.interrupt()
        spot.replica.lose_undecided()

    def give_back(self, spot: Spot) -> None:
        if spot.state == "draining" and not self.is_busy(spot):
            self.lives.append(
                Life(spot.number, spot.pool, spot.started_s, tuple(spot.ready_s), tuple(spot.lost_s), self.env.now)
            )
            spot.state, spot.replica = "empty", None

    def is_busy(self, spot: Spot) -> bool:
        return any(job.spot is spot for job in self.order)

    def fail_again_and_again(self, spot: Spot, fault: Fault, outages: Iterator[Any]) -> Process:
        for after_s, for_s in outages:
            yield Due(self.env, after_s, FLEET)
            if not self.num_left:
                return
            if fault.slow is None:
                self.lose(spot, for_s)
            else:
                spot.step_time.factors += (fault.slow,)
            yield Due(self.env, for_s, FLEET)
            if fault.slow is not None:
                spot.step_time.slow_no_more(fault.slow)

    def scale(self, pool: int, autoscaler: Autoscaler) -> Process:
        while self.num_left:
            self.scale_to(pool, autoscaler.desired(self.observed(pool, autoscaler.window_s)))
            yield Due(self.env, autoscaler.interval_s, FLEET)

    def scale_to(self, pool: int, count: int) -> None:
        spots = [spot for spot in self.spots if spot.pool == pool]
        wanted = [spot for spot in spots if spot.state in {"starting", "ready", "lost"}]
        for spot in [spot for spot in spots if spot.state == "empty"][: max(0, count - len(wanted))]:
            spot.started_s, spot.ready_s, spot.lost_s = self.env.now, [], []
            self.start(spot, 0.0)
        unready = [spot for spot in reversed(wanted) if spot.state != "ready"]
        ready = [spot for spot in reversed(wanted) if spot.state == "ready"]
        for spot in [*unready, *ready][: max(0, len(wanted) - count)]:
            spot.plan += 1
            spot.state = "draining"
            self.give_back(spot)

    def observed(self, pool: int, window_s: float) -> Observed:
        now_s, since_s = self.env.now, self.env.now - window_s
        spots = [spot for spot in self.spots if spot.pool == pool]
        numbers = [spot.number for spot in spots]
        recent = [answer for answer in self.answers if answer[0] > since_s and answer[2] in numbers]
        outputs = [(job.num_kept + job.attempt.max_tokens) * (1 + len(job.attempt.others)) for _, job, _ in recent]
        jobs = [job for job in self.jobs.values() if job.came_s > since_s and self.is_of(job, pool)]
        return Observed(
            now_s,
            sum(spot.state in {"starting", "ready", "lost"} for spot in spots),
            [self.shown(spot, window_s) for spot in spots if spot.state == "ready"],
            num_draining=sum(spot.state == "draining" for spot in spots),
            queued_waits_s=[now_s - job.came_s for job in self.queue],
            num_arrived=len(jobs),
            num_prompt_tokens=sum(self.pristine[job.attempt.index].num_prompt_tokens for job in jobs),
            mean_output_tokens=sum(outputs) / len(outputs) if outputs else 0.0,
        )

    def is_of(self, job: Job, pool: int) -> bool:
        """Whether it was sent there last, or nowhere yet."""
        return job.sent_to is None or self.spot_of(job.sent_to).pool == pool

    def metrics(self, spot: Spot) -> tuple[int, int, float]:
        assert spot.replica
        return spot.replica.metrics

    def shown(self, spot: Spot, window_s: float) -> Shown:
        metrics, now_s = self.metrics(spot), self.env.now
        if not window_s:
            return Shown(*metrics)
        since_s = now_s - window_s
        here = [job for at_s, job, number in self.answers if number == spot.number and at_s > since_s]
        times = [(_first_token_s(job), job) for job in (*here, *(job for job in self.order if job.spot is spot))]
        ttfts = [now_s - job.came_s for first_s, job in times if first_s is None]
        ttfts += [first_s - job.came_s for first_s, job in times if first_s is not None and first_s > since_s]
        tpots = [_tpot_s(job) for job in here if job.num_kept + job.attempt.max_tokens > 1]
        return Shown(*metrics, sorted(ttfts), sorted(tpots))


def until_interrupted(replica: Any) -> Process:
    try:
        yield from replica.run()
    except simpy.Interrupt:
        return


def again(request: Request) -> Request:
    fresh = copy(request)
    fresh.block_tables, fresh.num_hashed_blocks = list(request.block_tables), list(request.num_hashed_blocks)
    fresh.state_blocks, fresh.states_before = list(request.state_blocks), dict(request.states_before)
    fresh.others = [again(other) for other in request.others]
    for other in fresh.others:
        other.first = fresh
    return fresh


def _first_token_s(job: Job) -> float | None:
    """Of any answer."""
    times_s = [answer.first_token_s for answer in answers([job.first or job.attempt])]
    return min((time_s for time_s in times_s if time_s is not None), default=None)


def _tpot_s(job: Job) -> float:
    """Of an answer, as if the one that began first had also ended last."""
    first_s, finish_s = _first_token_s(job), _last(answer.finish_s for answer in answers([job.attempt]))
    assert first_s is not None
    assert finish_s is not None
    return (finish_s - first_s) / (job.num_kept + job.attempt.max_tokens - 1)


class ServedChanging(NamedTuple):
    """How the requests ended, by which replica (-1 where none had them), and what each replica recorded in each of its lives."""

    requests: RequestRecords
    replica: list[int]
    lives: tuple[Life, ...]
    engines: list[list[Records]]


def simulate_changing(
    trace: Trace,
    config: SchedulerConfig,
    pools: Sequence[Pool],
    *,
    router: str,
    dynamics: Dynamics,
    seed: int = 0,
    clients: Clients = AT_THEIR_TIMES,
    modes: Modes = PLAIN,
    kind: Callable[..., ManagedFleet] = ManagedFleet,
) -> ServedChanging:
    """Every step of every replica, and every decision of the gateway. What a replica keeps goes with it, unless that `kind` of fleet shares it."""
    if clients.users:
        trace = replace(trace, arrival_s=np.zeros(len(trace)))
    env = simpy.Environment(initial_time=min(0.0, float(trace.arrival_s[0])))
    requests = make_requests(trace, config)
    fleet = kind(env, config, pools, router, requests, dynamics, seed=seed, modes=modes)
    senders = Senders(env, fleet.submit, clients.max_concurrency)
    senders.expect(let_in(requests))
    fleet.on_end = senders.tokens_back
    send(env, senders, trace, requests, clients)
    env.run()
    ended = [_ended(fleet, request) for request in requests]
    engines = [
        [recorder.records(ended, replica.scheduler) for recorder, replica in spot.recorders] for spot in fleet.spots
    ]
    return ServedChanging(*ended_fleet(fleet, requests, len(trace)), engines)


def ended_fleet(
    fleet: ManagedFleet, requests: list[Request], num_requests: int
) -> tuple[RequestRecords, list[int], tuple[Life, ...]]:
    """How the requests ended, by whom, and who was there."""
    ended = [_ended(fleet, request) for request in requests]
    there = [
        Life(spot.number, spot.pool, spot.started_s, tuple(spot.ready_s), tuple(spot.lost_s))
        for spot in fleet.spots
        if spot.state != "empty"
    ]
    where = [fleet.where(fleet.jobs[row]) if row in fleet.jobs else -1 for row in range(num_requests)]
    return Recorder().records(ended, Scheduler(fleet.config)).requests, where, (*fleet.lives, *there)


def _last(times_s: Iterable[float | None]) -> float | None:
    """None where one is missing."""
    found = list(times_s)
    return None if None in found else max(time_s for time_s in found if time_s is not None)


def _ended(fleet: ManagedFleet, request: Request) -> Request:
    """The request as a whole, of all its attempts and answers."""
    job, pristine = fleet.jobs.get(request.index), fleet.pristine[request.index]
    all_answers = answers([job.attempt if job else request])
    last = copy(all_answers[0])
    last.num_prompt_tokens, last.max_tokens = pristine.num_prompt_tokens, pristine.max_tokens * len(all_answers)
    if job is None:
        return last
    first = answers([job.first or job.attempt])
    last.arrival_s = job.came_s
    scheduled_s = [answer.first_scheduled_s for answer in first if answer.first_scheduled_s is not None]
    last.first_scheduled_s, last.first_token_s = min(scheduled_s, default=None), _first_token_s(job)
    last.finish_s = _last(answer.finish_s for answer in all_answers)
    last.num_output_tokens = job.num_kept + sum(answer.num_output_tokens for answer in all_answers)
    last.num_preemptions = sum(answer.num_preemptions for answer in all_answers)
    kind, _, reason = job.outcome.partition(": ")
    last.rejected, last.failed = (reason if kind == name else None for name in ("rejected", "failed"))
    return last
