"""One simulation run: a trace's requests, their clients and the replicas that serve them, on SimPy's clock."""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import simpy

from sim.cluster.arrivals import arrivals
from sim.cluster.changing import ChangingFleet
from sim.cluster.changing_disaggregation import ChangingDisaggregatedFleet
from sim.cluster.changing_sharing import ChangingSharingFleet
from sim.cluster.clients import AT_THEIR_TIMES, Ask, Clients
from sim.cluster.disaggregated_fleet import DisaggregatedFleet
from sim.cluster.dynamics import Dynamics
from sim.cluster.endless import check_holds_nobody
from sim.cluster.engines import StepLog, engine_core, of_replica
from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.front_end import FrontEnd
from sim.cluster.gateway import Gateway
from sim.cluster.kv_pulls import PullSharing
from sim.cluster.listened import ListenedReplicas
from sim.cluster.parallel_sampling import ParallelSampling
from sim.cluster.queue_limits import QueueLimits, live_replica
from sim.cluster.records import ClusterRecords
from sim.cluster.replica import LazyReplica, LiveReplica, Replica
from sim.cluster.routers.router import Fleet, number_of
from sim.cluster.routers.table import router_for, router_options
from sim.cluster.routers.vllm_dp import VllmDataParallel
from sim.cluster.servers import ServerFleet
from sim.cluster.sharing_fleet import SharingFleet
from sim.cluster.sharing_servers import SharingServerFleet
from sim.engine.driven import Core
from sim.engine.records import EngineRecords
from sim.engine.request import Request
from sim.engine.request_source import ROWS_AT_ONCE, RequestSource
from sim.engine.request_table import RequestTable
from sim.errors import ConfigError
from sim.workload.adapters import num_adapters
from sim.workload.trace import Trace

Progress = Callable[[int, int], None]


def simulate(
    trace: Trace,
    plan: FleetPlan,
    *,
    seed: int = 0,
    clients: Clients = AT_THEIR_TIMES,
    on_progress: Progress | None = None,
    step_log: StepLog | None = None,
) -> ClusterRecords:
    """Replay a trace through a fleet; times count from the trace's own zero.

    If `clients` wait for answers, records have the times at which requests were sent. `on_progress` is called with
    (requests done, all) as they arrive; `step_log` gets one dict a step, with its replica where there are several. Requests that no pool can ever
    run are rejected with their reason and delay no others; those that some can run go to these. `seed` is that of the router's
    draws. Raises ConfigError for an unknown router, and for one that cannot work with pools so unlike.
    """
    clients.check(trace)
    check_plan(trace, plan)
    if clients.users:
        trace = replace(trace, arrival_s=np.zeros(len(trace)))
    source = plan.source(trace)
    table = RequestTable(source, sent_by_clients=clients.wait_for_answers(trace))
    env = simpy.Environment(initial_time=min(0.0, float(trace.arrival_s[0])))
    requests = _telling(source, on_progress) if on_progress else source
    load = _Load(env, trace, source, requests, clients, plan.front_end)
    if plan.dynamics:
        found = _serve_changing(load, table, plan, plan.dynamics, seed, step_log)
    elif plan.disaggregation:
        found = _serve_disaggregated(load, table, plan, seed, step_log)
    elif plan.sharing:
        found = _serve_sharing(load, table, plan, seed, step_log)
    elif plan.has_servers:
        found = _serve_by_servers(load, table, plan, seed, step_log)
    else:
        found = _serve_fixed(load, table, plan, seed, step_log)
    if on_progress:
        on_progress(len(trace), len(trace))
    return found


def check_plan(trace: Trace, plan: FleetPlan) -> None:
    """Raises ConfigError where requests ask for what the fleet does not do."""
    _check_adapters(trace, plan)
    _check_parallel_sampling(trace, plan)


def _check_adapters(trace: Trace, plan: FleetPlan) -> None:
    if num_adapters(trace) and any(pool.modes.lora is None for pool in plan.pools):
        raise ConfigError(
            f"{trace.source or 'the trace'} asks for {num_adapters(trace)} LoRA adapters (`lora_name`), which the engine does not"
            " serve; give enable_lora, or leave the column out."
        )


def _check_parallel_sampling(trace: Trace, plan: FleetPlan) -> None:
    """Raises ConfigError where requests ask for several answers of a fleet in which that is not simulated.

    KV that engines hand over has one address a request (`kv_transfer_params`), which vLLM does not make for each answer (vllm#38900).
    """
    if not len(trace.more_answers):
        return
    refused = {
        "pools that prefill for others, as vLLM hands over the KV of one answer a request (vllm#38900)": plan.disaggregation,
        "prefixes that replicas pull, as vLLM names one source a request (vllm#38900)": isinstance(
            plan.sharing, PullSharing
        ),
    }
    what = next((name for name, is_there in refused.items() if is_there), None)
    if what:
        raise ConfigError(
            f"{trace.source or 'the trace'} asks for several answers to a prompt (`n`), which is not simulated with {what};"
            " give each answer a request of its own."
        )


class _Load(NamedTuple):
    """What is sent, and by whom."""

    env: simpy.Environment
    trace: Trace
    source: RequestSource
    requests: Iterable[Request]
    clients: Clients
    front_end: FrontEnd

    @property
    def waits_for_answers(self) -> bool:
        return self.clients.wait_for_answers(self.trace)

    def start(self, submit: Callable[[Request], None], ask: Ask) -> None:
        """Begin to send requests, by `ask` where clients wait for the answer."""
        if self.waits_for_answers:
            self.clients.start(self.env, self.trace, self.requests, ask, self.front_end)
        else:
            self.env.process(arrivals(self.env, self.requests, submit))


def _serve_disaggregated(
    load: _Load, table: RequestTable, plan: FleetPlan, seed: int, step_log: StepLog | None
) -> ClusterRecords:
    """A fleet with servers that prefill for others."""
    fleet = DisaggregatedFleet(load.env, plan, load.source, table, seed=seed, step_log=step_log)
    load.start(fleet.gateway.submit, fleet.gateway.ask)
    load.env.run()
    return ClusterRecords.of(
        fleet.servers.records(),
        table,
        plan.pool_of,
        handovers=fleet.handovers(),
        shared=fleet.shared(),
        ranks=fleet.servers.ranks,
        server_of=plan.server_of,
    )


def _serve_sharing(
    load: _Load, table: RequestTable, plan: FleetPlan, seed: int, step_log: StepLog | None
) -> ClusterRecords:
    """A fleet whose replicas share KV."""
    if plan.has_servers:
        return _serve_sharing_servers(load, table, plan, seed, step_log)
    fleet = SharingFleet(load.env, plan, load.source, table, seed=seed, step_log=step_log)
    load.start(fleet.gateway.submit, fleet.gateway.ask)
    load.env.run()
    return ClusterRecords.of(fleet.records(), table, plan.pool_of, shared=fleet.shared())


def _serve_sharing_servers(
    load: _Load, table: RequestTable, plan: FleetPlan, seed: int, step_log: StepLog | None
) -> ClusterRecords:
    """One with servers of several engines."""
    fleet = SharingServerFleet(load.env, plan, load.source, table, seed=seed, step_log=step_log)
    load.start(fleet.gateway.submit, fleet.gateway.ask)
    load.env.run()
    found = fleet.servers
    records, shared = found.records(), fleet.shared()
    return ClusterRecords.of(records, table, plan.pool_of, shared=shared, ranks=found.ranks, server_of=plan.server_of)


def _serve_changing(
    load: _Load, table: RequestTable, plan: FleetPlan, dynamics: Dynamics, seed: int, step_log: StepLog | None
) -> ClusterRecords:
    """A fleet whose replicas come and go, or whose gateway does more than to send requests on."""
    kind = (
        ChangingDisaggregatedFleet if plan.disaggregation else ChangingSharingFleet if plan.sharing else ChangingFleet
    )
    fleet = kind(load.env, plan, dynamics, load.source, table, seed, step_log)
    load.start(fleet.gateway.submit, fleet.gateway.ask)
    load.env.run()
    return ClusterRecords.of(
        fleet.records(),
        table,
        fleet.pool_of,
        fleet.lives,
        fleet.handovers(),
        fleet.shared(),
        ranks=fleet.ranks,
        server_of=fleet.server_of,
    )


def _serve_by_servers(
    load: _Load, table: RequestTable, plan: FleetPlan, seed: int, step_log: StepLog | None
) -> ClusterRecords:
    """A fleet that stays as it is, in which some servers have several engines."""
    is_live = load.waits_for_answers or any(QueueLimits.of(config.engine) for config in plan.configs)
    fleet = ServerFleet(load.env, plan, load.source, table, seed=seed, is_live=is_live, step_log=step_log)
    if is_live:
        load.start(fleet.gateway.submit, fleet.gateway.ask)
        load.env.run()
    else:
        _send(load.env, load.requests, fleet.arrive, at_once=ROWS_AT_ONCE)
        fleet.servers.finish()
    found = fleet.servers
    return ClusterRecords.of(found.records(), table, plan.pool_of, ranks=found.ranks, server_of=plan.server_of)


def _serve_fixed(
    load: _Load, table: RequestTable, plan: FleetPlan, seed: int, step_log: StepLog | None
) -> ClusterRecords:
    """A fleet that stays as it is."""
    env, source = load.env, load.source
    members = members_of(plan, source, table, env.now, step_log)
    gateway = gateway_of(env, plan, source, table, seed)
    if load.waits_for_answers:
        gateway.replicas = live_replicas(env, members, gateway)
        load.start(gateway.submit, gateway.ask)
        env.run()
    else:
        serve_open(env, members, gateway, load.requests)
    return ClusterRecords.of([member.records() for member in members], table, plan.pool_of)


class Member(NamedTuple):
    """The engine of a replica, the replica's number, that of its pool, and its limits if it is a server that has some."""

    core: Core
    number: int = 0
    pool: int = 0
    limits: QueueLimits | None = None

    def records(self) -> EngineRecords:
        """Of the whole run. Raises ConfigError where requests wait for ever."""
        check_holds_nobody(self.core, self.number)
        return self.core.records()


def members_of(
    plan: FleetPlan,
    source: RequestSource,
    table: RequestTable,
    start_s: float,
    step_log: StepLog | None = None,
    *,
    some: Container[int] | None = None,
) -> list[Member]:
    """The engine of each replica, or of `some`."""
    members = []
    for number, pool in enumerate(plan.pool_of):
        if some is not None and number not in some:
            continue
        num_keys = source.num_keys(pool)
        log = of_replica(step_log, number) if plan.num_replicas > 1 else step_log
        core = engine_core(plan.pools[pool], table, number, start_s=start_s, num_keys=num_keys, step_log=log)
        limits = None if _is_one_server(plan) else QueueLimits.of(plan.configs[pool].engine)
        members.append(Member(core, number, pool, limits))
    return members


def gateway_of(
    env: simpy.Environment, plan: FleetPlan, source: RequestSource, table: RequestTable, seed: int
) -> Gateway:
    """With a router that knows the fleet."""
    configs = [plan.configs[pool] for pool in plan.pool_of]
    router = router_for(plan.router, Fleet(configs, source, seed), len(configs))
    return Gateway(
        env,
        router,
        unable=source.unable,
        fit=source.fit if source.other_keys else None,
        reject=table.reject,
        is_blind=len(configs) == 1 or router_options(plan.router).is_blind,
        limits=QueueLimits.of(configs[0].engine) if _is_one_server(plan) else None,
        sampling=ParallelSampling.of(source, one_by_one=_is_one_server(plan)),
    )


def _is_one_server(plan: FleetPlan) -> bool:
    return router_options(plan.router).is_of_one_server


def serve_open(
    env: simpy.Environment,
    members: Sequence[Member],
    gateway: Gateway,
    requests: Iterable[Request],
    others: Sequence[Replica] = (),
    at_once: int = ROWS_AT_ONCE,
) -> None:
    """Submit requests at the trace's times; limits of what is taken in wait for their answers, and a router may listen.

    `others` are replicas that serve elsewhere. So many requests are read `at_once` where nobody looks at the clock between them.
    """
    if gateway.has_limits or any(member.limits for member in members):
        gateway.replicas = sorted((*live_replicas(env, members, gateway), *others), key=number_of)
        _send(env, requests, gateway.submit)
    elif gateway.router.listens:
        cores = ((member.core, member.pool) for member in members)
        fleet = ListenedReplicas(cores, gateway.answered, gateway.router.scrape_interval_s)
        gateway.replicas = fleet.replicas
        _send(env, requests, _taken_in(gateway, fleet), at_once=at_once)
        fleet.finish()
    else:
        lazy = [LazyReplica(env, *member[:3]) for member in members]
        gateway.replicas = sorted((*lazy, *others), key=number_of)
        looks = not gateway.is_blind and gateway.router.asks_the_clock
        _send(env, requests, gateway.submit, at_once=1 if looks else at_once)
        for replica in lazy:
            replica.finish()


def _taken_in(gateway: Gateway, fleet: ListenedReplicas) -> Callable[[Request], object]:
    """How a request is that comes; where vLLM's balancers alone have a say, a single call that is compiled."""
    router = gateway.router
    if isinstance(router, VllmDataParallel) and gateway.only_routes:
        balancers = router.balancers
        return lambda request: fleet.serve((request,), balancers)

    def arrive(request: Request) -> None:
        fleet.catch_up(request.arrival_s)
        gateway.submit(request)

    return arrive


def _send(
    env: simpy.Environment, requests: Iterable[Request], submit: Callable[[Request], object], at_once: int = 1
) -> None:
    """Run until all requests are sent, and all that has events of its own is done."""
    env.process(arrivals(env, requests, submit, at_once))
    env.run()


def live_replicas(env: simpy.Environment, members: Sequence[Member], gateway: Gateway) -> list[LiveReplica]:
    """Replicas that report to the gateway what they answer and what they refuse."""
    return [
        live_replica(
            env,
            core,
            number,
            pool,
            partial(gateway.answered, number),
            gateway.router.scrape_interval_s,
            limits=limits,
            refuse=partial(gateway.refused, number),
        )
        for core, number, pool, limits in members
    ]


def _telling(requests: RequestSource, on_progress: Progress) -> Iterator[Request]:
    """The requests; how many rows of the trace lie before each is told as the next is asked for."""
    for request in requests:
        yield request
        on_progress(request.index, len(requests))
