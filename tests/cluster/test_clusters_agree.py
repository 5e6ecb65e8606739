"""Replicas that leap behind a router, and clients that wait for them, do what naive ones do."""

from collections import Counter
from dataclasses import replace
from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.clients import Clients
from sim.cluster.fleet_plan import FleetPlan, Pool
from sim.cluster.records import ClusterRecords
from sim.cluster.simulation import simulate
from sim.cluster.users import Users
from sim.engine import leaps
from sim.engine.records import EngineRecords, RequestRecords
from sim.workload.trace import Trace
from tests.conformance.case import RecordedStepTime
from tests.engine.test_engines_agree import Telling, assert_same_steps
from tests.properties import engine_examples as examples
from tests.reference import pools
from tests.reference.cluster import Served, simulate_cluster
from tests.reference.routers import ROUTERS
from tests.workloads import Workload, configs, conversations, step_times, traces, workloads

panel_bits = st.sampled_from((leaps.PANEL_BITS, (1,)))
WITH_OPTIONS = {
    "vllm_dp": "vllm_dp:interval_s=7",
    "prompt_length": "prompt_length:threshold=9",
    "llm_d": "llm_d:scrape_interval_s=7,running=1,load_aware=1,no_hit_lru=1,lru_blocks=3,cpu_prefix=1,cpu_lru_blocks=9,max_prefix_tokens=30",
    "llm_d_precise": "llm_d_precise:scrape_interval_s=7",
    "llm_d_optimized_baseline": "llm_d_optimized_baseline:affinity_threshold=0.5,max_penalty_tokens=8,active_request=0.01",
    "production_stack_prefix": "production_stack_prefix:chunk_tokens=3",
    "sglang_cache_aware": "sglang_cache_aware:balance_abs_threshold=2",
    "dynamo": "dynamo:kv_events=false,ttl_s=20,request_weight=0.5",
    "production_stack_session": "production_stack_session:stats_window_s=20",
}
EVICTING = "sglang_cache_aware:balance_abs_threshold=2,eviction_interval_s=5,max_tree_size=60"
DRAWN = (
    "llm_d:scrape_interval_s=7,lru_blocks=3,picker=weighted_random",
    "llm_d_optimized_baseline:affinity_threshold=0.5,max_penalty_tokens=8,picker=random",
)
IN_FLIGHT = "llm_d:queue=0,kv=0,token_load=1,output_ratio=1.5"
BY_PREFIX = (
    "llm_d:scrape_interval_s=7,lru_blocks=9",
    "dynamo:kv_events=false",
    "llm_d_optimized_baseline:affinity_threshold=0.5,max_penalty_tokens=8",
)
routers = st.sampled_from(
    [*(WITH_OPTIONS.get(name, name) for name in sorted(ROUTERS)), EVICTING, IN_FLIGHT, *DRAWN, *BY_PREFIX]
)


def assert_same_run(found: ClusterRecords, expected: Served) -> None:
    """Who served whom, every request's times, every replica's steps, gaps and cache."""
    assert found.replica.tolist() == expected.replica
    for name in RequestRecords.__dataclass_fields__:
        np.testing.assert_array_equal(
            getattr(found.merged.requests, name), getattr(expected.replicas[0].requests, name), err_msg=name
        )
    for mine, naive in zip(found.replicas, expected.replicas, strict=True):
        assert_same_steps(mine, naive)
        assert gaps(mine) == gaps(naive)
        assert (mine.prefix_cache_queries, mine.prefix_cache_hits) == (
            naive.prefix_cache_queries,
            naive.prefix_cache_hits,
        )


def gaps(records: EngineRecords) -> Counter[float]:
    counted: Counter[float] = Counter()
    for gap_s, count in zip(*map(np.ndarray.tolist, records.gaps()), strict=True):
        counted[gap_s] += count
    return +counted


@examples(100)
@given(workload=workloads(), num_replicas=st.integers(1, 3), router=routers, panel_bits=panel_bits)
def test_requests_of_a_trace(workload: Workload, num_replicas: int, router: str, panel_bits: tuple[int, ...]) -> None:
    """Whole numbers, so that arrivals, answers and passes of several replicas often fall on one instant."""
    trace, config, step_time = workload[0], workload[1], Telling(workload[2])
    with patch.object(leaps, "PANEL_BITS", panel_bits):
        found = simulate(trace, FleetPlan.alike(config, step_time, num_replicas, router))
    assert_same_run(found, simulate_cluster(trace, config, step_time, num_replicas=num_replicas, router=router))


@examples(100)
@given(
    workload=workloads(),
    num_replicas=st.integers(1, 3),
    router=routers,
    concurrency=st.integers(1, 5),
    delay_s=st.sampled_from([0.0, 1.0, 17.0]),
    panel_bits=panel_bits,
)
def test_requests_of_clients(
    workload: Workload,
    num_replicas: int,
    router: str,
    concurrency: int,
    delay_s: float,
    panel_bits: tuple[int, ...],
) -> None:
    """A client of one replica sends to another the instant that it is answered, in the middle of that one's leap."""
    trace, config, step_time = workload[0], workload[1], Telling(workload[2])
    clients = Clients(Users(concurrency, delay_s))
    with patch.object(leaps, "PANEL_BITS", panel_bits):
        found = simulate(trace, FleetPlan.alike(config, step_time, num_replicas, router), clients=clients)
    expected = simulate_cluster(trace, config, step_time, num_replicas=num_replicas, router=router, clients=clients)
    assert_same_run(found, expected)


@st.composite
def closed_loops(draw: st.DrawFn, trace: Trace) -> tuple[Trace, Clients]:
    """Sessions or not, with think times or not, in stages or not, in lines with limits or not; at their times, so many at a time, or by users."""
    count = len(trace)
    kind = draw(st.sampled_from(("users", "limit", "limit", "times", "times", "open")))
    has_stages = kind != "users" and draw(st.booleans())
    pauses = st.lists(st.sampled_from((0.0, 0.0, 1.0, 5.0, 40.0)), min_size=count, max_size=count)
    stages = st.lists(st.integers(0, 2), min_size=count, max_size=count).map(sorted)
    has_lines = kind != "users" and draw(st.booleans())
    line = np.array([sum(name.encode()) % 2 for name in trace.session_id or trace.request_id]) if has_lines else None
    trace = replace(
        trace,
        hold_s=np.array(draw(pauses)) if draw(st.booleans()) else None,
        line=line,
        max_concurrency=None if line is None else np.array(draw(st.tuples(*2 * [st.integers(1, 4)])))[line],
        think_time_s=np.array(draw(pauses)) if draw(st.booleans()) else None,
        stage=np.array(draw(stages)) if has_stages else None,
    )
    limit = draw(st.integers(1, 4))
    if kind == "users":
        return trace, Clients(Users(limit, draw(st.sampled_from((0.0, 3.0)))))
    return trace, Clients(max_concurrency=limit if kind == "limit" else None, open_loop=kind == "open")


@examples(400)
@given(
    data=st.data(),
    trace=st.one_of(conversations(), traces(sharing=False)),
    step_time=step_times,
    num_replicas=st.integers(1, 3),
    router=routers,
    panel_bits=panel_bits,
)
def test_requests_that_wait_for_answers(
    data: st.DataObject,
    trace: Trace,
    step_time: RecordedStepTime,
    num_replicas: int,
    router: str,
    panel_bits: tuple[int, ...],
) -> None:
    """Turns, limits, stages and users, alone and together, with requests that are rejected among them."""
    config = data.draw(configs(trace))
    trace, clients = data.draw(closed_loops(trace))
    with patch.object(leaps, "PANEL_BITS", panel_bits):
        found = simulate(trace, FleetPlan.alike(config, Telling(step_time), num_replicas, router), clients=clients)
    expected = simulate_cluster(
        trace, config, Telling(step_time), num_replicas=num_replicas, router=router, clients=clients
    )
    assert_same_run(found, expected)


@examples(200)
@given(
    data=st.data(),
    trace=st.one_of(conversations(), traces()),
    count=st.integers(2, 3),
    router=st.sampled_from(sorted(pools.ROUTERS)),
    panel_bits=panel_bits,
)
def test_pools_of_unlike_replicas(
    data: st.DataObject, trace: Trace, count: int, router: str, panel_bits: tuple[int, ...]
) -> None:
    """Other blocks, groups, contexts, limits and step times: some rows only one of them can serve, some nobody."""
    drawn = [(data.draw(configs(trace)), data.draw(step_times)) for _ in range(count)]
    trace, clients = data.draw(closed_loops(trace))
    plan = FleetPlan(tuple(Pool(config, Telling(step_time)) for config, step_time in drawn), router)
    with patch.object(leaps, "PANEL_BITS", panel_bits):
        found = simulate(trace, plan, clients=clients)
    members = [pools.Member(config, Telling(step_time)) for config, step_time in drawn]
    assert_same_run(found, pools.simulate_pools(trace, members, router, clients=clients))
