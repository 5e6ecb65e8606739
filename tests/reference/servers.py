"""Servers of several naive engines behind a router: each address of a server with vLLM's balancer between the engines behind it.

As vLLM has it (v1/engine/core_client.py, 0.32): the front end of an address manages so many ranks in order (`engine_ranks_managed`), begins to look
for the next one among these (`eng_start_index`), and of the counts of all that the coordinator sends takes theirs (`count_slice`). What it knows of is
nobody else's; ranks of other addresses step with its own all the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

import numpy as np
import simpy

from sim.cluster.clients import AT_THEIR_TIMES, Clients
from sim.cluster.options import named
from sim.engine.config import SchedulerConfig
from sim.steptime.protocol import StepTimeModel
from sim.workload.trace import Trace
from tests.reference.clients import Senders
from tests.reference.cluster import Gateway, Served, send
from tests.reference.front_door import answers, let_in, make_requests
from tests.reference.lockstep import Ranks
from tests.reference.modes import PLAIN, Modes, Script
from tests.reference.recorder import Recorder
from tests.reference.replica import Replica
from tests.reference.request import Request
from tests.reference.routers import ROUTERS, Router, VllmDataParallel
from tests.reference.staged_ranks import StagedRanks


class Ran(NamedTuple):
    """Who served whom, and those that step together, server by server."""

    served: Served
    ranks: list[Ranks | StagedRanks]


class Balancer(VllmDataParallel):
    """Knows each answer by itself."""

    given_up: tuple[Request, ...] = ()

    def in_flight(self, replica: int) -> list[Request]:
        return [
            answer
            for answer, where in self.sent
            if where == replica and answer.finish_s is None and answer not in self.given_up
        ]


class Address:
    """What the router sees: of several engines the first one's metrics, and the loads of all."""

    def __init__(self, gateway: Gateway, engines: Sequence[Any]) -> None:
        self.gateway = gateway
        self.gateway.replicas = list(engines)

    def submit(self, request: Request, _others: Sequence[Request] = ()) -> None:
        self.gateway.submit(request)

    @property
    def engines(self) -> list[Any]:
        return list(self.gateway.replicas)

    @property
    def load(self) -> tuple[int, int]:
        loads = [engine.load for engine in self.gateway.replicas]
        return self.gateway.num_undecided + sum(waiting for waiting, _ in loads), sum(running for _, running in loads)

    @property
    def metrics(self) -> tuple[int, int, float]:
        return self.gateway.replicas[0].metrics


def simulate_servers(
    trace: Trace,
    config: SchedulerConfig,
    step_time: StepTimeModel,
    *,
    num_servers: int,
    num_engines: int,
    per_address: int,
    router: str,
    balancer: str = "vllm_dp",
    in_lock_step: bool = True,
    seed: int = 0,
    clients: Clients = AT_THEIR_TIMES,
    modes: Modes = PLAIN,
    scripts: Sequence[Script] | None = None,
    connectors: Callable[[simpy.Environment], Callable[[Any, int], Any]] | None = None,
    **rules: Any,
) -> Ran:
    """Every step of every engine, each with a connector by its number, if there are some."""
    if clients.users:
        trace = replace(trace, arrival_s=np.zeros(len(trace)))
    env = simpy.Environment(initial_time=min(0.0, float(trace.arrival_s[0])))
    requests = make_requests(trace, config, scripts)
    count = len(let_in(requests))
    gateway = Gateway(env, chooser(router, trace, config, num_servers * num_engines // per_address, seed), count, None)
    senders = Senders(env, gateway.submit, clients.max_concurrency)
    senders.expect(let_in(requests))
    limits = PLAIN.with_limits_of(config.engine)
    inner = [
        Gateway(env, balancer_of(balancer, trace, config, per_address), count, limits if limits.limits_queue else None)
        for _ in range(num_servers * num_engines // per_address)
    ]

    def one_less() -> None:
        for each in inner:
            each.one_answered()

    def finished(answer: Request) -> None:
        if (request := gateway.answered(answer)) is not None:
            one_less()
            senders.tokens_back(request)

    def turned_away(request: Request) -> None:
        gateway.one_answered()
        one_less()
        senders.tokens_back(request)

    served = [
        engines_of(
            env, config, step_time, num_engines, finished, in_lock_step, rules, num_engines * number, modes=modes
        )
        for number in range(num_servers)
    ]
    engines = [engine for some, _ in served for engine in some]
    connect(engines, connectors(env) if connectors else None)
    for number, each in enumerate(inner):
        each.on_refused = turned_away
        gateway.replicas.append(Address(each, engines[number * per_address : (number + 1) * per_address]))  # type: ignore[arg-type]
        if each.router.scrape_interval_s and per_address > 1:
            env.process(each.scrape(each.router.scrape_interval_s))
    if gateway.router.scrape_interval_s and len(inner) > 1:
        env.process(gateway.scrape(gateway.router.scrape_interval_s))
    send(env, senders, trace, requests, clients)
    env.run()
    chosen = {
        row: per_address * place + within for place, each in enumerate(inner) for row, within in each.chosen.items()
    }
    parts = [engine.recorder.records(answers(requests), engine.scheduler) for engine in engines]
    numbers = [chosen.get(request.index, -1) for request in answers(requests)]
    return Ran(Served(parts, numbers), [ranks for _, ranks in served if ranks])


def connect(engines: Sequence[Any], connector: Callable[[Any, int], Any] | None) -> None:
    if connector is not None:
        for number, engine in enumerate(engines):
            engine.scheduler.connector = connector(engine, number)


def chooser(router: str, trace: Trace, config: SchedulerConfig, count: int, seed: int) -> Router:
    name, options = named("router", router)
    return ROUTERS[name](trace, config, count, Random(seed), options)  # noqa: S311


def balancer_of(balancer: str, trace: Trace, config: SchedulerConfig, count: int) -> Router:
    _, options = named("router", balancer)
    found = Balancer(trace, config, count, Random(0), options)  # noqa: S311
    found.is_one_server = count > 1
    return found


class Independent(Replica):
    """An engine by itself, with what it records."""

    def __init__(
        self,
        env: simpy.Environment,
        config: SchedulerConfig,
        step_time: StepTimeModel,
        finished: Any,
        modes: Modes,
        number: int,
    ) -> None:
        self.recorder = Recorder()
        super().__init__(env, config, step_time, self.recorder, number=number, on_finished=finished, modes=modes)


def engines_of(
    env: simpy.Environment,
    config: SchedulerConfig,
    step_time: StepTimeModel,
    count: int,
    finished: Callable[[Request], None],
    in_lock_step: bool,
    rules: dict[str, Any],
    first: int,
    *,
    start: Callable[[Any], Any] | None = None,
    modes: Modes = PLAIN,
) -> tuple[Sequence[Any], Ranks | StagedRanks | None]:
    """Whoever is to `start` what runs gets it."""
    if not in_lock_step:
        independent = [Independent(env, config, step_time, finished, modes, first + rank) for rank in range(count)]
        for engine in independent:
            start(engine) if start else env.process(engine.run())
        return independent, None
    ranks: Ranks | StagedRanks
    if "times" in rules:  # those with stages
        ranks = StagedRanks(env, config, num_ranks=count, first=first, **{"modes": modes} | rules)
    else:
        ranks = Ranks(env, config, step_time, count, first=first, **{"modes": modes} | rules)
    ranks.finished = finished
    if start:
        start(ranks)
    else:
        ranks.start()
    return ranks.ranks, ranks
