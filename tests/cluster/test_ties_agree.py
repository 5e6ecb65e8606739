"""Fleets in which nearly everything falls on one instant with something else do what naive ones do.

The properties of other files, where steps, pauses, faults, limits and transfers last one to three seconds each; sim/cluster/clock.py says what
comes first.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.dynamics import Dynamics
from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.network import NetworkCosts
from sim.cluster.simulation import simulate
from sim.cluster.users import Users
from sim.memory.kv_cache import KVGroup
from sim.memory.transfers import ReplicaKV
from sim.workload.trace import Trace
from tests.cluster import (
    test_changes_agree,
    test_changing_pools_agree,
    test_clusters_agree,
)
from tests.cluster.test_disaggregation_agrees import POLLING_S, Fleet
from tests.configs import scheduler_config
from tests.conformance.case import RecordedStepTime
from tests.engine.test_engines_agree import Telling
from tests.makers import ONE_SECOND, Ask, make_trace
from tests.properties import engine_examples as examples
from tests.reference import managed
from tests.reference.disaggregation import Pool
from tests.reference.managed import simulate_changing
from tests.reference.managed_pools import Rules
from tests.reference.modes import Script
from tests.workloads import Workload, configs

AUTOSCALERS = (
    {"policy": "hpa", "metric": "in_flight", "target": 2, "sync_s": 1, "scale_down_window_s": 2, "max": 3},
    {"policy": "keda", "target": 1, "min": 0, "max": 3, "polling_s": 2, "sync_s": 1, "cooldown_s": 3},
    {"policy": "llm_d_slo", "ttft_s": 3, "tpot_s": 2, "window_s": 6, "min": 1, "max": 3, "scale_down_window_s": 3},
    {"policy": "schedule", "times": [[0, 1], [4, 3], [9, 0]], "period_s": 12, "min": 0, "max": 3, "check_s": 1},
)
losses = st.fixed_dictionaries({"at_s": st.integers(0, 12), "replica": st.integers(0, 2), "for_s": st.integers(0, 3)})
slowdowns = st.fixed_dictionaries(
    {"at_s": st.integers(0, 8), "replica": st.just(0), "for_s": st.just(3), "slow": st.just(2)}
)
admissions = st.fixed_dictionaries(
    {},
    optional={
        "max_queued": st.sampled_from((0, 2)),
        "max_concurrent": st.integers(1, 3),
        "queue_timeout_s": st.sampled_from((1, 3)),
        "timeout_s": st.sampled_from((2, 4, 9)),
        "order": st.just("priority"),
    },
)


recoveries = st.fixed_dictionaries(
    {
        "lost": st.sampled_from(("retry", "fail", "resume")),
        "retries": st.integers(0, 3),
        "backoff_s": st.integers(0, 2),
        "backoff_factor": st.integers(1, 2),
        "jitter": st.just(0),
        "probe_interval_s": st.sampled_from((0, 2)),
        "circuit_failures": st.sampled_from((0, 2)),
        "circuit_open_s": st.just(3),
    }
)


@st.composite
def dynamics(draw: st.DrawFn, num_pools: int = 1) -> Dynamics:
    """With several pools each has its own policy."""
    policies = [draw(st.none() | st.sampled_from(AUTOSCALERS)) for _ in range(num_pools)]
    given: dict[str, Any] = {
        "faults": draw(st.lists(losses | slowdowns, max_size=3)),
        "recovery": draw(recoveries),
        "admission": draw(admissions),
    }
    if any(policies):
        given["autoscale"] = policies if num_pools > 1 else policies[0]
    return Dynamics.parse(given)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    count = draw(st.integers(1, 8))

    def column(values: st.SearchStrategy[int]) -> Any:
        return np.array(draw(st.lists(values, min_size=count, max_size=count)))

    return Trace(
        tuple(f"r{row}" for row in range(count)),
        np.cumsum(column(st.sampled_from((0, 0, 1, 2)))).astype(np.float64),
        column(st.integers(1, 4)),
        column(st.integers(1, 4)),
        priority=column(st.integers(0, 2)) if draw(st.booleans()) else None,
        session_id=tuple(f"s{session}" for session in column(st.integers(0, 2))) if draw(st.booleans()) else None,
    )


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    trace = draw(traces())
    return Workload(trace, draw(configs(trace)), draw(step_times))


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    trace = draw(traces())
    pools = []
    for _ in range(2):
        config = draw(configs(trace, versions=("0.33.0", "0.32.0")))
        kv = ReplicaKV((KVGroup("full", None, 1, config.block_size, 8),), draw(st.integers(1, 2)))
        scripts = [Script()] * len(trace)
        pools.append(Pool(config, Telling(draw(step_times)), kv, draw(st.integers(1, 3)), draw(routers), None, scripts))
    return Fleet(trace, pools[0], pools[1])


step_times = st.builds(RecordedStepTime, base_ns=st.integers(1, 2), per_token_ns=st.just(0), per_ctx_ns=st.just(0))
routers = st.sampled_from(("least_loaded", "random", "round_robin", "power_of_two"))
starts = st.sampled_from((0.0, 1.0, 3.0))
users = st.sampled_from((None, Users(2), Users(3), Users(3, 1.0)))
costs = st.builds(
    NetworkCosts,
    bytes_per_s=st.sampled_from((2, 4, 8, 16)),
    latency_s=st.integers(0, 2),
    descriptor_s=st.integers(0, 1),
    handshake_s=st.sampled_from((0, 2)),
)
rules = st.builds(
    Rules,
    costs=costs,
    least_uncached_tokens=st.sampled_from((1, 3)),
    lease_s=st.sampled_from((3.0, 6.0, 30.0)),
    is_renewed=st.booleans(),
    recomputes=st.booleans(),
    idle_sleep_s=st.just(POLLING_S),
)


def body_of(test: Any) -> Callable[..., None]:
    """A property without what it draws itself."""
    return cast("Callable[..., None]", test.hypothesis.inner_test)


@examples(150)
@given(
    data=st.data(),
    trace=traces(),
    step_time=step_times,
    num_replicas=st.integers(2, 3),
    router=test_clusters_agree.routers,
    panel_bits=test_clusters_agree.panel_bits,
)
def test_requests_that_wait_for_answers(**drawn: Any) -> None:
    """Of several replicas at once."""
    body_of(test_clusters_agree.test_requests_that_wait_for_answers)(**drawn)


@examples(150)
@given(
    workload=workloads(),
    num_replicas=st.integers(1, 3),
    router=routers,
    start_up_s=starts,
    changes=dynamics(),
    users=users,
    panel_bits=test_clusters_agree.panel_bits,
)
def test_fleets_that_change(**drawn: Any) -> None:
    """Arrivals beside retries, and clients' next requests beside those that wait at the gateway."""
    body_of(test_changes_agree.test_fleets_that_change)(**drawn)


@examples(150)
@given(
    fleet=fleets(),
    changes=dynamics(2),
    how=rules,
    start_up_s=starts,
    router=routers,
    users=users,
)
def test_pools_that_change(**drawn: Any) -> None:
    """Transfers, leases and polls besides."""
    body_of(test_changing_pools_agree.test_fleets_that_change)(**drawn)


@pytest.mark.parametrize("session_id", [None, ("a", "b", "c")])
def test_who_comes_again_stands_behind_who_comes(session_id: tuple[str, ...] | None) -> None:
    """The last arrives as the others try again, also one that was lost as soon as it was sent, and be they turns of sessions."""
    trace = make_trace([Ask("lost", 1, 1), Ask("lost at once", 1, 1, 2.0), Ask("last", 1, 1, 3.0)])
    trace = replace(trace, session_id=session_id)
    config = scheduler_config(max_num_seqs=1, async_scheduling=False, num_gpu_blocks=9)
    changes = Dynamics.parse(
        {
            "faults": [{"at_s": 0, "replica": 0, "for_s": 2}],
            "recovery": {
                "lost": "retry",
                "retries": 4,
                "backoff_s": 1,
                "backoff_factor": 1,
                "jitter": 0,
                "probe_interval_s": 2,
            },
        }
    )
    plan = FleetPlan.alike(config, ONE_SECOND, 1, "least_loaded", dynamics=changes, start_up_s=0.0)
    naive = simulate_changing(
        trace, config, [managed.Pool(ONE_SECOND, 1, 0.0)], router="least_loaded", dynamics=changes
    )
    for requests in (simulate(trace, plan).merged.requests, naive.requests):
        assert requests.finish_s.tolist() == [6, 5, 4]
