"""Replicas behind a router."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.records import ClusterRecords
from sim.cluster.routers.table import router_options
from sim.cluster.simulation import simulate as simulate_cluster
from sim.engine.config import SchedulerConfig
from sim.engine.records import Ints
from sim.errors import ConfigError
from sim.steptime.linear import LinearStepTime
from sim.workload.trace import Trace
from tests.configs import changed, scheduler_config
from tests.engine.test_engines_agree import assert_same_records
from tests.engines import simulate
from tests.properties import engine_examples as examples
from tests.search.makers import STEPS, make_trace
from tests.workloads import Workload, workloads

CONFIG = scheduler_config(max_num_seqs=8, max_num_batched_tokens=256, max_model_len=2048, num_gpu_blocks=300)


def cluster(
    trace: Trace, num_replicas: int, router: str = "least_loaded", config: SchedulerConfig = CONFIG
) -> ClusterRecords:
    return simulate_cluster(trace, FleetPlan.alike(config, STEPS, num_replicas, router))


def some(trace: Trace, rows: Ints) -> Trace:
    return replace(
        trace,
        request_id=tuple(trace.request_id[row] for row in rows),
        arrival_s=trace.arrival_s[rows],
        prompt_tokens=trace.prompt_tokens[rows],
        output_tokens=trace.output_tokens[rows],
    )


@given(st.integers(1, 60), st.integers(0, 5), st.booleans())
@examples(25)
def test_a_cluster_of_one_is_a_replica(num_requests: int, seed: int, is_async: bool) -> None:
    """Every time and count, step by step."""
    trace = make_trace(num_requests, seed=seed)
    config = changed(CONFIG, async_scheduling=is_async)
    one, alone = cluster(trace, 1, config=config).merged, simulate(trace, config, STEPS)
    np.testing.assert_array_equal(one.requests.finish_s, alone.requests.finish_s)
    for name in ("start_s", "end_s", "num_decodes", "num_free_blocks", "num_waiting"):
        np.testing.assert_array_equal(getattr(one.steps, name), getattr(alone.steps, name))


@given(workload=workloads(), shift=st.sampled_from([0, -50]))
@examples(60)
def test_a_cluster_of_one_is_a_replica_whatever_it_is_given(workload: Workload, shift: int) -> None:
    """With shared prompts, windows, preemption, and arrivals before zero."""
    trace, config, step_time = workload
    trace = replace(trace, arrival_s=trace.arrival_s + shift)
    found = simulate_cluster(trace, FleetPlan.alike(config, step_time))
    assert_same_records(found.merged, simulate(trace, config, step_time))
    assert found.replicas[0].leaps is found.merged.leaps


@given(workload=workloads(), num_replicas=st.integers(2, 3))
@examples(60)
def test_steps_of_all_are_those_of_each_one_after_the_other(workload: Workload, num_replicas: int) -> None:
    """Times, work and free blocks of every step, within leaps too; the span is that of the longest, busy are all of them."""
    plan = FleetPlan.alike(workload.config, workload.step_time, num_replicas, "round_robin")
    found = simulate_cluster(workload.trace, plan)
    for column in fields(found.merged.steps):
        parts = [getattr(part.steps, column.name) for part in found.replicas]
        np.testing.assert_array_equal(getattr(found.merged.steps, column.name), np.concatenate(parts))
    ends_s = [part.steps.end_s[-1] for part in found.replicas if len(part.steps)]
    assert found.span_s == (max(ends_s) - workload.trace.arrival_s[0] if ends_s else 0)
    busy_s = sum(float((part.steps.end_s - part.steps.start_s).sum()) for part in found.replicas)
    assert found.busy_fraction == (pytest.approx(busy_s / found.span_s / num_replicas) if ends_s else None)


@given(st.integers(2, 80), st.integers(2, 5), st.integers(0, 5), st.booleans())
@examples(25)
def test_round_robin_is_every_nth_request_by_itself(
    num_requests: int, num_replicas: int, seed: int, is_async: bool
) -> None:
    """Replicas do not know of each other: each serves its share as if it were alone."""
    trace, config = make_trace(num_requests, seed=seed, rate_rps=100.0), changed(CONFIG, async_scheduling=is_async)
    together = cluster(trace, num_replicas, "round_robin", config)
    for number in range(min(num_replicas, num_requests)):
        rows = np.arange(number, num_requests, num_replicas)
        alone = simulate(some(trace, rows), config, STEPS)
        np.testing.assert_allclose(together.merged.requests.finish_s[rows], alone.requests.finish_s, rtol=1e-12)
        np.testing.assert_array_equal(together.merged.requests.num_preemptions[rows], alone.requests.num_preemptions)
        assert (together.replica[rows] == number).all()


@pytest.mark.parametrize("router", ["dynamo", "llm_d_optimized_baseline", "sglang_cache_aware", "vllm_dp"])
@given(num_replicas=st.integers(2, 4), seed=st.integers(0, 99), is_async=st.booleans())
@examples(10)
def test_replicas_that_catch_up_do_what_processes_do(router: str, num_replicas: int, seed: int, is_async: bool) -> None:
    """A limit that nobody reaches makes replicas processes; not a digit depends on it, in few blocks and in a rush."""
    trace = make_trace(60, seed=seed, rate_rps=100.0)
    config = changed(CONFIG, async_scheduling=is_async, num_gpu_blocks=150)
    found = cluster(trace, num_replicas, router, config)
    as_processes = cluster(trace, num_replicas, router, changed(config, max_num_queued_reqs=1000))
    np.testing.assert_array_equal(found.replica, as_processes.replica)
    assert_same_records(found.merged, as_processes.merged)


@given(st.integers(1, 80), st.integers(1, 5), st.sampled_from(["round_robin", "least_loaded"]))
@examples(25)
def test_every_request_is_served_once(num_requests: int, num_replicas: int, router: str) -> None:
    """All finish, and all their tokens were made by the replicas together."""
    trace = make_trace(num_requests, rate_rps=100.0)
    records = cluster(trace, num_replicas, router)
    assert np.isfinite(records.merged.requests.finish_s).all()
    assert records.merged.requests.generated_tokens.sum() == trace.output_tokens.sum()
    assert len(records.merged.steps) == sum(len(part.steps) for part in records.replicas)


def test_least_loaded_sends_nothing_to_who_is_blocked() -> None:
    """A long request on one replica of a batch of one: all others go to the other."""
    trace = replace(make_trace(7, most=30), arrival_s=np.arange(7.0), output_tokens=np.array([900, 5, 5, 5, 5, 5, 5]))
    records = cluster(trace, 2, config=changed(CONFIG, max_num_seqs=1))
    assert records.replica.tolist() == [0, 1, 1, 1, 1, 1, 1]


def test_a_request_that_can_never_run_goes_nowhere() -> None:
    trace = replace(make_trace(3, most=30), prompt_tokens=np.array([10, 5000, 10]))
    records = cluster(trace, 2, "round_robin")
    assert records.replica.tolist() == [0, -1, 1]
    assert records.merged.requests.rejected[1] is not None


def test_who_has_ended_long_ago_counts_no_more() -> None:
    """An idle replica that takes several requests at one instant has nobody running."""
    trace = replace(
        make_trace(6),
        arrival_s=np.array([0.0, 1, 500, 500, 500, 500]),
        prompt_tokens=np.full(6, 10),
        output_tokens=np.array([1000, 2, 2, 2, 2, 2]),
    )
    slow = LinearStepTime(base_s=1.0, per_token_s=0.0, per_context_token_s=0.0)
    config = changed(CONFIG, async_scheduling=False)
    assert simulate_cluster(trace, FleetPlan.alike(config, slow, 3)).replica.tolist() == [0, 1, 2, 1, 0, 1]


def test_an_unknown_router_names_its_neighbours() -> None:
    with pytest.raises(ConfigError, match="Did you mean round_robin"):
        router_options("roundrobin")
