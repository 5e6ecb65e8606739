"""Replicas that pull prefixes from each other do what naive ones do."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.fleet_plan import FleetPlan, Pool
from sim.cluster.kv_pulls import PullOptions, PullSharing
from sim.cluster.network import NetworkCosts
from sim.cluster.shared_records import PullRecords
from sim.memory.kv_cache import KVGroup
from sim.memory.transfers import ReplicaKV
from tests.cluster.drafts import modes_of, naive_scripts, naive_speculation
from tests.cluster.sharing import POLLING_S, ROUTERS, Workload, served, workloads
from tests.cluster.test_clusters_agree import assert_same_run
from tests.conformance.case import RecordedStepTime
from tests.engine.test_engines_agree import Telling
from tests.properties import engine_examples as examples
from tests.reference.kv_pulls import simulate_pulls
from tests.workloads import step_times

sharings = st.builds(
    PullSharing,
    st.builds(PullOptions, st.sampled_from((0, 3, 9)), st.sampled_from(("gpu", "host"))),
    st.builds(
        NetworkCosts,
        bytes_per_s=st.integers(1, 20),
        latency_s=st.integers(0, 9),
        descriptor_s=st.integers(0, 3),
        handshake_s=st.sampled_from((0, 0, 25)),
    ),
    st.sampled_from((1.0, 8.0)),
)


@examples(80)
@given(
    workload=workloads(),
    sharing=sharings,
    step_time=step_times,
    num_replicas=st.integers(2, 3),
    router=st.sampled_from(ROUTERS),
)
def test_replicas_that_pull(
    workload: Workload,
    sharing: PullSharing,
    step_time: RecordedStepTime,
    num_replicas: int,
    router: str,
) -> None:
    """The same steps and times; who pulls does so from the source that was named, no less than the threshold."""
    trace, config, given = workload
    kv = ReplicaKV((KVGroup("full", None, 1, config.block_size, 8),), 1)
    timed = Telling(step_time)
    plan = FleetPlan((Pool(config, timed, num_replicas, kv=kv, modes=modes_of(given)),), router, sharing=sharing)
    found = served(trace, plan)
    expected, pulls = simulate_pulls(
        trace,
        config,
        timed,
        sharing,
        kv,
        num_replicas=num_replicas,
        router=router,
        idle_sleep_s=POLLING_S,
        speculation=naive_speculation(given),
        scripts=naive_scripts(given, trace),
    )
    assert_same_run(found, expected)
    assert isinstance(found.shared, PullRecords)
    for row in np.flatnonzero(found.shared.are_pulled).tolist():
        assert found.shared.source[row] == pulls[row].source
        assert max(1, sharing.options.kv_recompute_threshold) <= found.shared.num_tokens[row] <= pulls[row].num_tokens
