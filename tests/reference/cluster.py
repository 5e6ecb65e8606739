"""Many naive replicas behind a router, and clients that wait for their answers."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

import numpy as np
import simpy

from sim.cluster.clients import AT_THEIR_TIMES, Clients
from sim.cluster.options import named
from sim.engine.config import SchedulerConfig
from sim.engine.records import Records
from sim.specs.kv_transfer import OffloadConfig
from sim.steptime.protocol import StepTimeModel
from sim.workload.trace import Trace
from tests.reference.arrivals import ANSWERED, BEFORE_ALL, Due
from tests.reference.clients import Senders, sessions_of
from tests.reference.front_door import answers, let_in, make_requests
from tests.reference.modes import ONE_STAGE, PLAIN, Modes, Offload, Pipeline, Script, Transfers
from tests.reference.recorder import Recorder
from tests.reference.replica import Replica, refusal
from tests.reference.request import Request
from tests.reference.routers import ROUTERS, Router


class Served(NamedTuple):
    """What each replica recorded, and which of them served each row, -1 where none did."""

    replicas: list[Records]
    replica: list[int]


class Gateway:
    """Routes each request, and keeps the router's metrics; where all replicas are one server, its limits are those of all."""

    def __init__(
        self,
        env: simpy.Environment,
        router: Router,
        num_unanswered: int,
        limits: Modes | None,
    ) -> None:
        self._env = env
        self._limits = limits
        self.on_refused: Callable[[Request], None] = lambda _request: None
        self._there: list[Request] = []
        self._undecided: list[Request] = []
        self.router = router
        self._num_unanswered = num_unanswered
        self.replicas: list[Replica] = []
        self.chosen: dict[int, int] = {}

    def submit(self, request: Request) -> None:
        if self._limits:
            self._undecided.append(request)
            self._env.process(self._let_in(request, self._limits, Due(self._env, 0, ANSWERED)))
        else:
            self._route(request)

    def _let_in(self, request: Request, limits: Modes, turn: Due) -> Generator[simpy.Event, Any, None]:
        """When it is its turn, which it has been given as it came."""
        yield turn
        if request not in self._undecided:  # aborted or lost meanwhile
            return
        self._undecided.remove(request)
        unfinished = [there for there in self._there if there.finish_s is None]
        request.rejected = refusal(limits, unfinished, 1 + len(request.others))
        if request.rejected:
            self.on_refused(request)
        else:
            self._there += [request, *request.others]
            self._route(request)

    @property
    def num_undecided(self) -> int:
        """Answers that are asked for by requests which may yet be turned away."""
        return sum(1 + len(request.others) for request in self._undecided)

    def forget(self, *given_up: Request) -> bool:
        """Nobody waits for these any more; whether they were still to be let in."""
        was_undecided = given_up[0] in self._undecided
        self._undecided = [request for request in self._undecided if request not in given_up]
        self._there = [answer for answer in self._there if answer not in given_up]
        return was_undecided

    def lose_undecided(self) -> None:
        self._undecided = []

    def _route(self, request: Request) -> None:
        """All answers come from one replica, but the engines of one server get theirs one by one."""
        for other in request.others:
            other.arrival_s = request.arrival_s
        if self.router.is_one_server:
            for answer in (request, *request.others):
                self.replicas[self._choose(answer)].submit(answer)
        else:
            request.together = request.others
            number = self._choose(request)
            self.chosen |= {other.index: number for other in request.others}
            self.replicas[number].submit(request, request.others)

    def _choose(self, request: Request) -> int:
        number = self.router.choose(request, self.replicas) if len(self.replicas) > 1 else 0
        self.chosen[request.index] = number
        self.router.sent.append((request, number))
        return number

    def scrape(self, interval_s: float) -> Generator[simpy.Event, Any, None]:
        """Ask every replica for its metrics at each multiple of the interval, before anything else happens then."""
        while self._num_unanswered:
            yield Due(self._env, interval_s - self._env.now % interval_s, BEFORE_ALL)
            self.router.metrics = [replica.metrics for replica in self.replicas]
            self.router.scraped()

    def one_answered(self) -> None:
        self._num_unanswered -= 1

    def answered(self, request: Request) -> Request | None:
        """An answer has come: the request that has all of its with it."""
        first = request.first or request
        first.num_answered += 1
        if first.num_answered <= len(first.others):
            return None
        self.one_answered()
        return first


def simulate_cluster(
    trace: Trace,
    config: SchedulerConfig,
    step_time: StepTimeModel,
    *,
    num_replicas: int,
    router: str | Mapping[str, Any],
    seed: int = 0,
    clients: Clients = AT_THEIR_TIMES,
    idle_sleep_s: float = 0.001,
    pipeline: Pipeline = ONE_STAGE,
    modes: Modes = PLAIN,
    tier: OffloadConfig | None = None,
    scripts: Sequence[Script] | None = None,
) -> Served:
    """Every step of every replica, and a process for each request or user; those with a CPU tier poll."""
    modes = with_cpu_tier(config, tier, idle_sleep_s) if tier else modes
    if pipeline.num_stages > 1:
        has_spare = config.engine.async_scheduling and config.engine.rules.paces_decodes
        modes = Modes(pipeline.num_stages + has_spare, pipeline=pipeline)
    users = clients.users
    if users:
        trace = replace(trace, arrival_s=np.zeros(len(trace)))
    env = simpy.Environment(initial_time=min(0.0, float(trace.arrival_s[0])))
    requests = make_requests(trace, config, scripts, speculation=modes.speculation)
    name, options = named("router", router)
    chooser = ROUTERS[name](trace, config, num_replicas, Random(seed), options)  # noqa: S311
    chooser.is_one_server = is_one_server = name == "vllm_dp"
    limited = modes.with_limits_of(config.engine)
    gateway = Gateway(env, chooser, len(let_in(requests)), limited if is_one_server and limited.limits_queue else None)
    senders = Senders(env, gateway.submit, clients.max_concurrency)
    senders.expect(let_in(requests))
    recorders = [Recorder() for _ in range(num_replicas)]

    def finished(answer: Request) -> None:
        if (request := gateway.answered(answer)) is not None:
            senders.tokens_back(request)

    def turned_away(request: Request) -> None:
        gateway.one_answered()
        senders.tokens_back(request)

    def refused(request: Request) -> None:
        for answer in (request, *request.others):
            del gateway.chosen[answer.index]
        turned_away(request)

    gateway.on_refused = turned_away
    gateway.replicas = [
        Replica(
            env,
            config,
            step_time,
            recorder,
            number=number,
            modes=modes if is_one_server else limited,
            on_finished=finished,
            on_refused=refused,
        )
        for number, recorder in enumerate(recorders)
    ]
    for replica in gateway.replicas:
        env.process(replica.run())
    if chooser.scrape_interval_s and num_replicas > 1:
        env.process(gateway.scrape(chooser.scrape_interval_s))
    send(env, senders, trace, requests, clients)
    env.run()
    parts = [
        recorder.records(answers(requests), replica.scheduler)
        for recorder, replica in zip(recorders, gateway.replicas, strict=True)
    ]
    return Served(parts, [gateway.chosen.get(request.index, -1) for request in answers(requests)])


def with_cpu_tier(config: SchedulerConfig, tier: OffloadConfig, idle_sleep_s: float) -> Modes:
    transfers = Transfers("offload", reports_at_start=tier.reports_at_start, offload=cpu_of(tier))
    return Modes(config.num_batches_in_flight, transfers=transfers, idle_sleep_s=idle_sleep_s)


def cpu_of(tier: OffloadConfig) -> Offload:
    return Offload(
        tier.cpu_chunks,
        tier.load_base_s,
        tier.load_block_s,
        tier.store_base_s,
        tier.store_block_s,
        tier.blocks_per_chunk,
        eviction_policy=tier.eviction_policy,
    )


def send(env: simpy.Environment, senders: Senders, trace: Trace, requests: Sequence[Request], clients: Clients) -> None:
    """Begin to send all that is let in."""
    if clients.users is None:
        env.process(senders.replay(trace, let_in(list(requests)), open_loop=clients.open_loop))
        return
    work = iter(sessions_of(trace, let_in(list(requests))))
    for _ in range(clients.users.num_users):
        env.process(senders.user(trace, work, clients.users.think_time_s))
