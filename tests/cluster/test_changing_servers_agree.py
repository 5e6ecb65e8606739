"""Servers of several engines in fleets that change do what naive ones do."""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sim.cluster.clients import Clients
from sim.cluster.dynamics import Dynamics
from sim.cluster.fleet_plan import FleetPlan, Pool, ServerPlan
from sim.cluster.records import ClusterRecords
from sim.cluster.simulation import simulate
from sim.cluster.users import Users
from sim.engine import leaps
from sim.engine.config import SchedulerConfig
from sim.engine.rank_group import LockStepRules
from sim.engine.walking import vain_calls
from sim.engine.walking.modes import PLAIN, Modes
from sim.errors import ConfigError
from sim.specs.kv_transfer import OffloadConfig
from sim.workload.trace import Trace
from tests.cluster.test_changes_agree import assert_same_run, dynamics
from tests.cluster.test_clusters_agree import panel_bits
from tests.cluster.test_conservation import assert_all_ended_once, assert_all_is_free, watched_engines
from tests.cluster.test_offload_agrees import POLLING_S
from tests.cluster.test_parallel_sampling import prompts
from tests.cluster.test_queue_limits import limits
from tests.cluster.test_ranks_beside import revisits
from tests.cluster.test_servers_agree import RULES, balancers, layouts, some_load, stepping_together
from tests.cluster.tiers import tiers
from tests.configs import changed
from tests.conformance.case import RecordedStepTime
from tests.engine.test_engines_agree import Telling
from tests.makers import ONE_SECOND, Ask, make_config, make_trace
from tests.properties import engine_examples as examples
from tests.reference.cluster import with_cpu_tier
from tests.reference.managed_servers import ServedByServers, Servers, simulate_changing_servers
from tests.workloads import SINCE_0_12, configs, step_times

routers = st.sampled_from(("least_loaded", "random", "round_robin", "power_of_two"))
starts = st.sampled_from((0.0, 3.0, 20.0))
num_servers = st.integers(1, 3)
AT_ITS_TIMES = Clients()
some_limits: st.SearchStrategy[dict[str, int]] = st.one_of(st.just({}), limits)


@examples(120)
@given(
    data=st.data(),
    trace=prompts,
    step_time=step_times,
    limits=some_limits,
    num_servers=num_servers,
    layout=layouts,
    router=routers,
    balancer=balancers,
    start_up_s=starts,
    changes=dynamics(),
    panel_bits=panel_bits,
)
def test_servers_of_independent_engines(
    data: st.DataObject,
    trace: Trace,
    step_time: RecordedStepTime,
    limits: dict[str, int],
    num_servers: int,
    layout: tuple[int, int],
    router: str,
    *,
    balancer: str,
    start_up_s: float,
    changes: Dynamics,
    panel_bits: tuple[int, ...],
) -> None:
    """As those of a dense model, behind an address a server, a node or an engine: who has which answer, every step, and the lives of servers."""
    config = changed(data.draw(configs(trace)), **limits)
    trace, clients = some_load(data, trace)
    size, num_addresses = layout
    server = ServerPlan(size, None, balancer, num_addresses)
    pool = Pool(config, Telling(step_time), num_servers * size, start_up_s, server=server)
    found = ran(trace, FleetPlan((pool,), router, changes), clients, panel_bits)
    naive = simulate_changing_servers(
        trace,
        config,
        Telling(step_time),
        num_servers=num_servers,
        start_up_s=start_up_s,
        servers=Servers(size, size // num_addresses, balancer, None),
        router=router,
        dynamics=changes,
        clients=clients,
    )
    assert_same_run(found, naive)


@examples(150)
@given(
    data=st.data(),
    trace=prompts,
    step_time=step_times,
    limits=some_limits,
    num_servers=num_servers,
    layout=layouts,
    router=routers,
    balancer=balancers,
    start_up_s=starts,
    changes=dynamics(),
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
    start_up_s: float,
    changes: Dynamics,
    per_other_ns: int | None,
    looks: tuple[int, bool],
    panel_bits: tuple[int, ...],
) -> None:
    """Behind an address a server, a node or a rank: also every dummy and wave of those that were there in turn."""
    config = changed(data.draw(configs(trace, versions=SINCE_0_12)), **limits)
    trace, clients = some_load(data, trace)
    timed, lock_step, rules = stepping_together(step_time, per_other_ns, looks)
    size, num_addresses = layout
    server = ServerPlan(size, lock_step, balancer, num_addresses)
    pool = Pool(config, timed, num_servers * size, start_up_s, server=server)
    found = ran(trace, FleetPlan((pool,), router, changes), clients, panel_bits)
    naive = simulate_changing_servers(
        trace,
        config,
        timed,
        num_servers=num_servers,
        start_up_s=start_up_s,
        servers=Servers(size, size // num_addresses, balancer, rules),
        router=router,
        dynamics=changes,
        clients=clients,
    )
    assert_same_run(found, naive)
    assert_same_ranks(found, naive)


def test_a_client_acts_on_the_last_answer_before_those_at_the_gateway_do() -> None:
    """Both answers of the second request come back at once, one from each rank: its client sends the fourth while the third waits as one request at
    the gateway, and not as two answers at the ranks.
    """
    config = make_config(max_num_seqs=1, async_scheduling=True, block_size=16)
    trace = replace(
        make_trace([Ask("a", 20, 1), Ask("b", 40, 1), Ask("c", 20, 2), Ask("d", 20, 1)]), n=np.array([1, 2, 2, 2])
    )
    ten_seconds, clients = RecordedStepTime(10, 0, 0), Clients(max_concurrency=2)
    changes = Dynamics.parse({"admission": {"max_concurrent": 1, "max_queued": 2}})
    server = ServerPlan(2, LockStepRules(1, looks_at_once=True), "vllm_dp:interval_s=3")
    rules = RULES | {"sync_interval": 1}
    found, _ = only_server(trace, Pool(config, ten_seconds, 2, 0.0, server=server), rules, changes, clients)
    assert not found.merged.requests.rejected


def test_who_came_first_is_let_in_or_refused_before_the_next_acts_on_its_refusal() -> None:
    """All at 0 s: the first request waits at its server's door as two answers, so that the gateway turns the second away; the first is
    refused next, for it came before; and so its place is free when the second's user sends the third.
    """
    config, clients = make_config(max_num_queued_reqs=1), Clients(Users(2))
    trace = replace(make_trace([Ask("a", 1, 1), Ask("b", 1, 1), Ask("c", 1, 1)]), n=np.array([2, 1, 1]))
    changes = Dynamics.parse({"admission": {"max_queued": 2}})
    server = ServerPlan(2, None, "vllm_dp:interval_s=7")
    found, _ = only_server(trace, Pool(config, ONE_SECOND, 2, 0.0, server=server), None, changes, clients)
    assert sorted(found.merged.requests.rejected) == [0, 1]


def test_aborts_during_a_dummy_batch_are_heard_of_before_the_next_call() -> None:
    """The second batch is on the device when all give up: the wave ends with it, and not with the dummy batch before it.

    As vLLM 0.32's own run_busy_loop does, driven with its scheduler.
    """
    config = make_config(max_num_seqs=1, async_scheduling=True, block_size=16)
    trace, ten_seconds = make_trace([Ask(str(row), 20, 1) for row in range(3)]), RecordedStepTime(10, 0, 0)
    changes = Dynamics.parse({"admission": {"timeout_s": 15}})
    server = ServerPlan(1, LockStepRules(1, looks_at_once=True))
    rules = RULES | {"sync_interval": 1}
    found, naive = only_server(trace, Pool(config, ten_seconds, 1, 0.0, server=server), rules, changes)
    assert_same_ranks(found, naive)
    (ranks,) = found.ranks
    assert (ranks.num_waves, ranks.num_steps, ranks.dummy_steps) == (1, 4, [2])


@pytest.mark.parametrize("interval", [1, 2])
@pytest.mark.parametrize("timeout_s", [4.5, 5.5, 6.5])
def test_aborts_during_a_dummy_batch_after_a_preemption(timeout_s: float, interval: int) -> None:
    """The pass at 5 s preempts and runs nothing: those who give up during its dummy batch are heard of before the pass at 6 s, which is a dummy too.

    Be it an engine that leaps, or one whose prefills wait for each other.
    """
    config = make_config(
        num_gpu_blocks=8, block_size=1, max_num_seqs=2, scheduling_policy="priority", async_scheduling=False,
        scheduler_reserve_full_isl=False, enable_prefix_caching=False,
    )  # fmt: skip
    trace = make_trace([Ask(str(row), 1, output) for row, output in enumerate((1, 1, 1, 5, 6, 1))])
    changes = Dynamics.parse({"admission": {"timeout_s": timeout_s}})
    modes = Modes(throttle_interval=interval) if interval > 1 else PLAIN
    server = ServerPlan(1, LockStepRules(1, prefill_interval=interval))
    pool = Pool(config, ONE_SECOND, 1, 0.0, modes=modes, server=server)
    rules = RULES | {"sync_interval": 1, "prefill_interval": interval}
    found, naive = only_server(trace, pool, rules, changes)
    assert_same_ranks(found, naive)
    if interval == 1:
        (ranks,) = found.ranks
        assert (ranks.num_steps, ranks.dummy_steps) == {4.5: (5, [0]), 5.5: (7, [2]), 6.5: (7, [1])}[timeout_s]


def test_demand_is_what_servers_were_sent_whichever_engine_had_it() -> None:
    """Four prompts of 20 tokens in 50 s, one for each engine, are 1.6 tokens a second: two servers of 1 token a second."""
    trace = make_trace([Ask(str(row), 20, 30, at=float(row)) for row in range(4)] + [Ask("last", 20, 1, at=80.0)])
    planner = {"policy": "dynamo", "ttft_s": 100, "itl_s": 1.1, "max": 3, "throughput_interval_s": 50}
    changes = Dynamics.parse({"autoscale": planner | {"prefill_tokens_per_s": 1}})
    pool = Pool(make_config(), ONE_SECOND, 4, 0.0, server=ServerPlan(4, None, "vllm_dp:interval_s=7"))
    found, _ = only_server(trace, pool, None, changes)
    assert sorted(found.replica[:4]) == [0, 1, 2, 3]
    assert [life.started_s for life in found.lives] == [0.0, 50.0]


def only_server(
    trace: Trace, pool: Pool, rules: dict[str, Any] | None, changes: Dynamics, clients: Clients = AT_ITS_TIMES
) -> tuple[ClusterRecords, ServedByServers]:
    """A fleet whose only server is there from the beginning, and does what the naive one does."""
    assert isinstance(pool.server, ServerPlan)
    size, balancer = pool.server.num_engines, str(pool.server.balancer)
    found = simulate(trace, FleetPlan((pool,), "least_loaded", changes), clients=clients)
    naive = simulate_changing_servers(
        trace,
        pool.config,
        pool.step_time,
        num_servers=1,
        start_up_s=0.0,
        servers=Servers(size, size // pool.server.num_addresses, balancer, rules),
        router="least_loaded",
        dynamics=changes,
        clients=clients,
    )
    assert_same_run(found, naive)
    return found, naive


def ran(trace: Trace, plan: FleetPlan, clients: Clients, bits: tuple[int, ...]) -> ClusterRecords:
    """Every request ends once, and nobody holds a block in the end."""
    with patch.object(leaps, "PANEL_BITS", bits), watched_engines() as engines:
        try:
            found = simulate(trace, plan, clients=clients)
        except ConfigError as error:  # the naive engines would go on for ever, as vLLM
            assume("preempt each other for ever" not in str(error))
            raise
    assert_all_ended_once(found)
    assert_all_is_free(engines)
    return found


def assert_same_ranks(found: ClusterRecords, naive: ServedByServers) -> None:
    for mine, lives in zip(found.ranks, naive.ranks, strict=True):
        assert mine.num_waves == sum(ranks.num_waves for ranks in lives)
        assert mine.dummy_steps == [sum(ranks.num_dummies[rank] for ranks in lives) for rank in range(mine.num_ranks)]


@examples(100)
@given(
    workload=revisits(),
    step_time=step_times,
    tier=tiers,
    num_servers=num_servers,
    layout=layouts,
    lock_step=st.booleans(),
    router=routers,
    changes=dynamics(),
    concurrency=st.none() | st.integers(1, 4),
)
def test_servers_whose_engines_have_a_cpu_tier(
    workload: tuple[Trace, SchedulerConfig],
    step_time: RecordedStepTime,
    tier: OffloadConfig,
    num_servers: int,
    layout: tuple[int, int],
    router: str,
    *,
    lock_step: bool,
    changes: Dynamics,
    concurrency: int | None,
) -> None:
    """Each its own, which is lost with the server."""
    (trace, config), timed, balancer = workload, Telling(step_time), "vllm_dp:interval_s=7"
    assume(config.engine.enable_prefix_caching)
    clients = Clients(Users(concurrency)) if concurrency else Clients()
    size, num_addresses = layout
    server = ServerPlan(size, LockStepRules() if lock_step else None, balancer, num_addresses)
    modes = Modes(offload=tier, idle_sleep_s=POLLING_S)
    pool = Pool(config, timed, num_servers * size, 3.0, modes=modes, server=server)
    try:
        with patch.object(vain_calls, "MOST_VAIN_LOADS", 100):
            found = simulate(trace, FleetPlan((pool,), router, changes), clients=clients)
    except ConfigError as error:
        assume("for ever" not in str(error) and "again and again" not in str(error))
        raise
    polling = with_cpu_tier(config, tier, POLLING_S)
    naive = simulate_changing_servers(
        trace,
        config,
        timed,
        num_servers=num_servers,
        start_up_s=3.0,
        servers=Servers(size, size // num_addresses, balancer, RULES if lock_step else None, polling),
        router=router,
        dynamics=changes,
        clients=clients,
    )
    assert_same_run(found, naive)
    assert_all_ended_once(found)
