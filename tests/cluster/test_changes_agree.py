"""Fleets that change do what naive ones do: replicas that start, drain, slow down and are lost, and requests that are kept,
turned away, aborted and tried again.
"""

from typing import Any
from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster import fleet_plan
from sim.cluster.clients import Clients
from sim.cluster.dynamics import Dynamics
from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.records import ClusterRecords, joined
from sim.cluster.simulation import simulate
from sim.cluster.users import Users
from sim.engine import leaps
from sim.engine.records import RequestRecords
from tests.cluster.test_clusters_agree import gaps, panel_bits
from tests.engine.test_engines_agree import Telling, assert_same_steps
from tests.properties import engine_examples as examples
from tests.reference.managed import Pool, ServedChanging, simulate_changing
from tests.reference.managed_servers import ServedByServers
from tests.workloads import Workload, step_times, workloads

AUTOSCALERS = (
    {"policy": "hpa", "metric": "in_flight", "target": 2, "sync_s": 5, "scale_down_window_s": 10, "max": 3},
    {"policy": "hpa", "metric": "kv_cache_usage", "target": 0.3, "sync_s": 7, "scale_down_window_s": 0, "max": 4},
    {"policy": "keda", "target": 1, "min": 0, "max": 3, "polling_s": 4, "sync_s": 6, "cooldown_s": 12},
    {"policy": "llm_d_slo", "ttft_s": 20, "tpot_s": 4, "window_s": 40, "min": 1, "max": 3, "scale_down_window_s": 15},
    {"policy": "dynamo", "ttft_s": 20, "itl_s": 4, "max": 3, "throughput_interval_s": 50, "prefill_tokens_per_s": 1},
    {"policy": "schedule", "times": [[0, 1], [20, 3], [45, 0]], "period_s": 60, "min": 0, "max": 3, "check_s": 5},
)
faults = st.one_of(
    st.builds(
        lambda at_s, replica, for_s: {"at_s": at_s, "replica": replica, "for_s": for_s},
        st.integers(0, 80),
        st.integers(0, 2),
        st.sampled_from((0, 3, 40)),
    ),
    st.builds(
        lambda at_s, slow: {"at_s": at_s, "replica": 0, "for_s": 30, "slow": slow},
        st.integers(0, 60),
        st.sampled_from((1, 3)),
    ),
)
recoveries = st.fixed_dictionaries(
    {
        "lost": st.sampled_from(("retry", "fail", "resume", "resume")),
        "retries": st.integers(0, 3),
        "backoff_s": st.sampled_from((0, 1, 5)),
        "jitter": st.sampled_from((0, 0.2)),
        "probe_interval_s": st.sampled_from((0, 0, 10)),
        "circuit_failures": st.sampled_from((0, 0, 2)),
        "circuit_open_s": st.just(15),
    }
)
admissions = st.fixed_dictionaries(
    {},
    optional={
        "max_queued": st.sampled_from((0, 2)),
        "max_concurrent": st.integers(1, 3),
        "queue_timeout_s": st.sampled_from((5, 30)),
        "timeout_s": st.sampled_from((10, 60)),
        "order": st.just("priority"),
    },
)


@st.composite
def dynamics(draw: st.DrawFn) -> Dynamics:
    """Any of it, alone and together."""
    given: dict[str, Any] = {}
    if draw(st.booleans()):
        given["autoscale"] = draw(st.sampled_from(AUTOSCALERS))
    given["faults"] = draw(st.lists(faults, max_size=3))
    given["recovery"] = draw(recoveries)
    given["admission"] = draw(admissions)
    return Dynamics.parse(given)


def assert_same_run(found: ClusterRecords, expected: ServedChanging | ServedByServers) -> None:
    """Every request's end, every replica's life, steps, gaps and cache."""
    for name in RequestRecords.__dataclass_fields__:
        np.testing.assert_array_equal(
            getattr(found.merged.requests, name), getattr(expected.requests, name), err_msg=name
        )
    assert found.replica.tolist() == expected.replica
    assert found.lives == expected.lives
    for mine, lives in zip(found.replicas, expected.engines, strict=True):
        if not lives:
            assert not len(mine.leaps)
            continue
        naive = joined(lives)
        assert_same_steps(mine, naive)
        assert gaps(mine) == gaps(naive)
        assert mine.prefix_cache_hits == naive.prefix_cache_hits


@examples(200)
@given(
    workload=workloads(),
    num_replicas=st.integers(1, 3),
    router=st.sampled_from(("least_loaded", "random", "round_robin", "power_of_two")),
    start_up_s=st.sampled_from((0.0, 3.0, 20.0)),
    changes=dynamics(),
    users=st.sampled_from((None, Users(3, 1.0), Users(3))),
    panel_bits=panel_bits,
)
def test_fleets_that_change(
    workload: Workload,
    num_replicas: int,
    router: str,
    start_up_s: float,
    changes: Dynamics,
    users: Users | None,
    panel_bits: tuple[int, ...],
) -> None:
    """Whole numbers, so that losses, answers, passes and decisions often fall on one instant."""
    trace, config, step_time = workload[0], workload[1], Telling(workload[2])
    clients = Clients(users)
    plan = FleetPlan.alike(config, step_time, num_replicas, router, dynamics=changes, start_up_s=start_up_s)
    with patch.object(leaps, "PANEL_BITS", panel_bits):
        found = simulate(trace, plan, clients=clients)
    expected = simulate_changing(
        trace,
        config,
        [Pool(step_time, num_replicas, start_up_s)],
        router=router,
        dynamics=changes,
        clients=clients,
    )
    assert_same_run(found, expected)
    assert_all_ended_once(found)


@st.composite
def policies(draw: st.DrawFn, num_pools: int) -> Dynamics:
    """Of some of the pools, beside other changes."""
    own = [draw(st.none() | st.sampled_from(AUTOSCALERS)) for _ in range(num_pools)]
    given = {
        "faults": draw(st.lists(faults, max_size=2)),
        "recovery": draw(recoveries),
        "admission": draw(admissions),
    }
    return Dynamics.parse(given | ({"autoscale": own} if any(own) else {}))


@examples(100)
@given(
    data=st.data(),
    workload=workloads(),
    router=st.sampled_from(("least_loaded", "random", "round_robin", "power_of_two")),
    users=st.sampled_from((None, Users(3, 1.0), Users(3))),
)
def test_each_pool_has_its_policy(data: st.DataObject, workload: Workload, router: str, users: Users | None) -> None:
    """Pools of other speed and start-up behind one router, each scaled by what it is sent itself."""
    trace, config, step_time = workload
    pools = [
        Pool(Telling(model), data.draw(st.integers(1, 2)), data.draw(st.sampled_from((0.0, 3.0, 20.0))))
        for model in (step_time, data.draw(step_times))
    ]
    changes, clients = data.draw(policies(len(pools))), Clients(users)
    plan = FleetPlan(tuple(fleet_plan.Pool(config, *pool) for pool in pools), router, changes)
    found = simulate(trace, plan, clients=clients)
    expected = simulate_changing(trace, config, pools, router=router, dynamics=changes, clients=clients)
    assert_same_run(found, expected)
    assert_all_ended_once(found)


def assert_all_ended_once(found: ClusterRecords) -> None:
    """Completed, rejected or failed."""
    requests = found.merged.requests
    done = np.isfinite(requests.finish_s)
    assert done.sum() + len(requests.rejected) + len(requests.failed) == len(requests)
    assert not set(requests.rejected) & set(requests.failed)
