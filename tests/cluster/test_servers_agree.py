"""Servers of several engines that leap, behind a router and with clients that wait, do what naive ones do."""

from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sim.cluster.clients import Clients
from sim.cluster.fleet_plan import FleetPlan, Pool, ServerPlan
from sim.cluster.records import ClusterRecords
from sim.cluster.simulation import simulate
from sim.cluster.users import Users
from sim.engine import leaps
from sim.engine.config import SchedulerConfig
from sim.engine.rank_group import LockStepRules
from sim.engine.records import RequestRecords
from sim.errors import ConfigError
from sim.steptime.protocol import StepTimeModel
from sim.workload.trace import Trace
from tests.cluster.test_clusters_agree import closed_loops, panel_bits
from tests.cluster.test_lock_step_agrees import DISPATCH, AgreedTime
from tests.cluster.test_parallel_sampling import assert_same_answers, prompts, with_n
from tests.cluster.test_queue_limits import limits
from tests.configs import changed
from tests.conformance.case import RecordedStepTime
from tests.engine.test_engines_agree import Telling, assert_same_steps
from tests.makers import Ask, make_config, make_trace
from tests.properties import engine_examples as examples
from tests.reference.servers import simulate_servers
from tests.workloads import SINCE_0_12, configs, conversations, step_times, traces

ROUTERS = (
    "least_loaded",
    "round_robin",
    "random",
    "power_of_two",
    "consistent_hash",
    "llm_d:scrape_interval_s=5,running=1,load_aware=1,lru_blocks=3",
    "llm_d:queue=0,kv=0,token_load=1,output_ratio=1.5",
    "sglang_cache_aware:balance_abs_threshold=2",
    "dynamo:kv_events=false,ttl_s=20",
)
balancers = st.sampled_from(("vllm_dp:interval_s=7", "vllm_dp:interval_s=3"))
layouts = st.sampled_from(((1, 1), (2, 1), (3, 1), (2, 2), (3, 3), (4, 2), (4, 2), (6, 2), (6, 3)))
"""Engines of a server, and its addresses: one, one a node, or one an engine."""
RULES: dict[str, Any] = {
    "sync_interval": 16,
    "looks_at_once": True,
    "prefill_interval": 1,
    "dispatch": None,
    "dbo": None,
}
one_answer = st.one_of(conversations(), traces(sharing=False))


def some_load(data: st.DataObject, trace: Trace) -> tuple[Trace, Clients]:
    """Open or closed loops, some of whose requests ask for several answers; half of them such as no client waits for."""
    trace = with_n(trace, data) if data.draw(st.booleans()) else trace
    return (trace, Clients(open_loop=True)) if data.draw(st.booleans()) else data.draw(closed_loops(trace))


def stepping_together(
    step_time: RecordedStepTime, per_other_ns: int | None, looks: tuple[int, bool]
) -> tuple[StepTimeModel, LockStepRules, dict[str, Any]]:
    """How long steps take, and the rules of lock step for the product and for the naive ranks; these agree on graphs where others' tokens count."""
    timed: StepTimeModel = Telling(step_time) if per_other_ns is None else AgreedTime(step_time, per_other_ns)
    dispatch = None if per_other_ns is None else DISPATCH
    rules = RULES | {"sync_interval": looks[0], "looks_at_once": looks[1], "dispatch": dispatch}
    return timed, LockStepRules(*looks, dispatch=dispatch), rules


@examples(150)
@given(
    data=st.data(),
    trace=prompts,
    step_time=step_times,
    limits=st.one_of(st.just({}), limits),
    num_servers=st.integers(1, 3),
    layout=layouts,
    router=st.sampled_from(ROUTERS),
    balancer=balancers,
    per_other_ns=st.none() | st.integers(0, 2),
    looks=st.tuples(st.sampled_from([1, 3, 16]), st.booleans()),
    panel_bits=panel_bits,
)
def test_servers_whose_ranks_step_together(
    data: st.DataObject,
    trace: Trace,
    step_time: RecordedStepTime,
    limits: dict[str, int],
    num_servers: int,
    layout: tuple[int, int],
    router: str,
    *,
    balancer: str,
    per_other_ns: int | None,
    looks: tuple[int, bool],
    panel_bits: tuple[int, ...],
) -> None:
    """Behind an address a server, a node or a rank: who has which answer, every step, dummy and wave of each server."""
    config = changed(data.draw(configs(trace, versions=SINCE_0_12)), **limits)
    trace, clients = some_load(data, trace)
    timed, lock_step, rules = stepping_together(step_time, per_other_ns, looks)
    size, num_addresses = layout
    server = ServerPlan(size, lock_step, balancer, num_addresses)
    plan = FleetPlan((Pool(config, timed, num_servers * size, server=server),), router)
    found = leapt(trace, plan, clients, panel_bits)
    ran = simulate_servers(
        trace,
        config,
        timed,
        num_servers=num_servers,
        num_engines=size,
        per_address=size // num_addresses,
        router=router,
        balancer=balancer,
        clients=clients,
        **rules,
    )
    assert_same_answers(found, ran.served, trace)
    assert [(ranks.dummy_steps, ranks.num_waves) for ranks in found.ranks] == [
        (ranks.num_dummies, ranks.num_waves) for ranks in ran.ranks
    ]


@examples(120)
@given(
    data=st.data(),
    trace=prompts,
    step_time=step_times,
    limits=st.one_of(st.just({}), limits),
    num_servers=st.integers(1, 3),
    layout=layouts,
    router=st.sampled_from(ROUTERS),
    balancer=balancers,
    panel_bits=panel_bits,
)
def test_servers_whose_engines_know_nothing_of_each_other(
    data: st.DataObject,
    trace: Trace,
    step_time: RecordedStepTime,
    limits: dict[str, int],
    num_servers: int,
    layout: tuple[int, int],
    router: str,
    *,
    balancer: str,
    panel_bits: tuple[int, ...],
) -> None:
    """As those of a dense model, behind an address a server, a node or an engine."""
    config = changed(data.draw(configs(trace)), **limits)
    trace, clients = some_load(data, trace)
    size, num_addresses = layout
    server = ServerPlan(size, None, balancer, num_addresses)
    pool = Pool(config, Telling(step_time), num_servers * size, server=server)
    found = leapt(trace, FleetPlan((pool,), router), clients, panel_bits)
    ran = simulate_servers(
        trace,
        config,
        Telling(step_time),
        num_servers=num_servers,
        num_engines=size,
        per_address=size // num_addresses,
        router=router,
        balancer=balancer,
        in_lock_step=False,
        clients=clients,
    )
    assert_same_answers(found, ran.served, trace)


def assert_answers_are_those_of_naive_ones(
    trace: Trace,
    config: SchedulerConfig,
    step_time: RecordedStepTime,
    num_servers: int,
    server: ServerPlan,
    router: str,
    clients: Clients,
) -> None:
    """Of so many such servers, whose balancers are told at multiples of 7 s."""
    server = server._replace(balancer="vllm_dp:interval_s=7")
    pool = Pool(config, Telling(step_time), num_servers * server.num_engines, server=server)
    ran = simulate_servers(
        trace,
        config,
        Telling(step_time),
        num_servers=num_servers,
        num_engines=server.num_engines,
        per_address=server.num_engines // server.num_addresses,
        router=router,
        balancer="vllm_dp:interval_s=7",
        in_lock_step=server.lock_step is not None,
        clients=clients,
        **RULES,
    )
    assert_same_answers(simulate(trace, FleetPlan((pool,), router), clients=clients), ran.served, trace)


def busy(seed: int) -> Trace:
    """So many requests at a time that what is seen of a server is seldom the same twice, and never of two."""
    draw = Random(seed)  # noqa: S311
    arrivals = sorted(draw.randrange(150) for _ in range(40))
    return make_trace(
        [Ask(str(row), draw.randint(1, 30), draw.randint(1, 12), float(at)) for row, at in enumerate(arrivals)]
    )


LOADS = {
    "at their times": (Clients(open_loop=True), {}),
    "by users": (Clients(Users(9, 2.0)), {}),
    "with limits": (Clients(open_loop=True), {"max_num_queued_reqs": 6}),
}


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("router", ["least_loaded", "llm_d:scrape_interval_s=5,prefix=0,running=1"])
@pytest.mark.parametrize("rules", [LockStepRules(), None])
@pytest.mark.parametrize("layout", [(2, 1), (2, 2), (4, 2)])
@pytest.mark.parametrize("seed", range(2))
def test_what_a_router_sees_of_a_server(
    load: str, rules: LockStepRules | None, layout: tuple[int, int], router: str, seed: int
) -> None:
    """Under a load that tells: its load of this instant, requests that wait at its door among them, or its metrics of the last scrape."""
    clients, limited = LOADS[load]
    config = make_config(num_gpu_blocks=40, block_size=4, max_num_seqs=4, max_num_batched_tokens=16, **limited)
    server = ServerPlan(layout[0], rules, num_addresses=layout[1])
    assert_answers_are_those_of_naive_ones(busy(seed), config, RecordedStepTime(3, 1, 0), 3, server, router, clients)


@examples(100)
@given(
    data=st.data(),
    trace=one_answer,
    step_time=step_times,
    num_servers=st.integers(1, 3),
    layout=layouts,
    rules=st.sampled_from([LockStepRules(), None]),
)
def test_what_a_router_knows_of_caches(
    data: st.DataObject,
    trace: Trace,
    step_time: RecordedStepTime,
    num_servers: int,
    layout: tuple[int, int],
    rules: LockStepRules | None,
) -> None:
    """The most that any engine of an address holds of a prompt, as it comes."""
    config, router = data.draw(configs(trace, versions=SINCE_0_12)), "llm_d_precise:queue=0,kv=0"
    server = ServerPlan(layout[0], rules, num_addresses=layout[1])
    assert_answers_are_those_of_naive_ones(
        trace, config, step_time, num_servers, server, router, Clients(open_loop=True)
    )


@examples(100)
@given(data=st.data(), trace=one_answer, sizes=st.lists(st.integers(1, 2), min_size=2, max_size=3))
def test_servers_of_one_engine_are_replicas(data: st.DataObject, trace: Trace, sizes: list[int]) -> None:
    """Also of unlike pools, some of which cannot serve some requests."""
    drawn = [(data.draw(configs(trace)), Telling(data.draw(step_times))) for _ in sizes]
    trace, clients = data.draw(closed_loops(trace))
    router = data.draw(st.sampled_from(("least_loaded", "random", "round_robin", "power_of_two")))
    plans = [
        FleetPlan(tuple(Pool(*of, size, server=server) for of, size in zip(drawn, sizes, strict=True)), router)
        for server in (None, ServerPlan(1))
    ]
    assert_same(*(simulate(trace, plan, clients=clients) for plan in plans))


@examples(50)
@given(data=st.data(), trace=prompts, step_time=step_times, count=st.integers(2, 4))
def test_one_server_is_its_engines_behind_its_balancer(
    data: st.DataObject, trace: Trace, step_time: RecordedStepTime, count: int
) -> None:
    """Whatever router stands before it."""
    config = data.draw(configs(trace))
    trace, clients = some_load(data, trace)
    balancer = "vllm_dp:interval_s=7"
    alone = FleetPlan.alike(config, Telling(step_time), count, balancer)
    pool = Pool(config, Telling(step_time), count, server=ServerPlan(count, None, balancer))
    served = FleetPlan((pool,), data.draw(st.sampled_from(ROUTERS)))
    try:
        assert_same(*(simulate(trace, plan, clients=clients) for plan in (alone, served)))
    except ConfigError as error:
        assume("preempt each other for ever" not in str(error))
        raise


def leapt(trace: Trace, plan: FleetPlan, clients: Clients, bits: tuple[int, ...]) -> ClusterRecords:
    with patch.object(leaps, "PANEL_BITS", bits):
        try:
            return simulate(trace, plan, clients=clients)
        except ConfigError as error:  # the naive engines would go on for ever, as vLLM
            assume("preempt each other for ever" not in str(error))
            raise


def assert_same(one: ClusterRecords, other: ClusterRecords) -> None:
    """Who served whom, and all that came of it."""
    assert one.replica.tolist() == other.replica.tolist()
    for name in RequestRecords.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(one.merged.requests, name), getattr(other.merged.requests, name))
    for mine, theirs in zip(one.replicas, other.replicas, strict=True):
        assert_same_steps(mine, theirs)
