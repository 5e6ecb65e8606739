"""Replicas that pull prefixes from each other do what naive ones do."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sim.cluster.fleet_plan import FleetPlan, Pool
from sim.cluster.kv_pulls import PullOptions, PullSharing
from sim.cluster.network import NetworkCosts
from sim.cluster.shared_records import PullRecords
from sim.engine.config import SchedulerConfig
from sim.engine.walking.modes import Modes
from sim.memory.kv_cache import KVGroup
from sim.memory.transfers import ReplicaKV
from sim.specs.kv_transfer import OffloadConfig
from sim.workload.trace import Trace
from tests.cluster.drafts import modes_of, naive_scripts, naive_speculation
from tests.cluster.sharing import POLLING_S, ROUTERS, Workload, served, workloads
from tests.cluster.test_clusters_agree import assert_same_run
from tests.cluster.test_ranks_beside import revisits
from tests.cluster.tiers import tiers
from tests.configs import scheduler_config
from tests.conformance.case import RecordedStepTime
from tests.engine.test_engines_agree import Telling
from tests.makers import ONE_SECOND, Ask, make_trace
from tests.properties import engine_examples as examples
from tests.reference.cluster import cpu_of
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
    workload=workloads(with_windows=True),
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
    assert_same_pulls(workload, sharing, step_time, None, num_replicas, router)


@examples(80)
@given(
    workload=revisits(with_windows=True),
    sharing=sharings,
    step_time=step_times,
    tier=tiers,
    stretched=st.sampled_from((1, 20, 200)),
    num_replicas=st.integers(2, 3),
    router=st.sampled_from(ROUTERS),
)
def test_replicas_that_pull_beside_a_cpu_tier(
    workload: tuple[Trace, SchedulerConfig],
    sharing: PullSharing,
    step_time: RecordedStepTime,
    tier: OffloadConfig,
    *,
    stretched: int,
    num_replicas: int,
    router: str,
) -> None:
    """Prompts that begin alike, on few blocks: what was there is often in host memory alone, of the same replica or of another."""
    trace, config = workload
    trace = replace(trace, arrival_s=trace.arrival_s * stretched)  # else all have come before anything is stored
    assume(config.engine.enable_prefix_caching)
    assume(config.block_size > 1)  # where a prompt is one block, vLLM loads it again and again
    assert_same_pulls(Workload(trace, config, None), sharing, step_time, tier, num_replicas, router)


def assert_same_pulls(
    workload: Workload,
    sharing: PullSharing,
    step_time: RecordedStepTime,
    tier: OffloadConfig | None,
    num_replicas: int,
    router: str,
) -> None:
    trace, config, given = workload
    kv = ReplicaKV((KVGroup("full", None, 1, config.block_size, 8),), 1)
    timed, modes = Telling(step_time), replace(modes_of(given), offload=tier)
    plan = FleetPlan((Pool(config, timed, num_replicas, kv=kv, modes=modes),), router, sharing=sharing)
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
        offload=cpu_of(tier) if tier else None,
    )
    assert_same_run(found, expected)
    assert isinstance(found.shared, PullRecords)
    for row in np.flatnonzero(found.shared.are_pulled).tolist():
        assert found.shared.source[row] == pulls[row].source
        assert max(1, sharing.options.kv_recompute_threshold) <= found.shared.num_tokens[row] <= pulls[row].num_tokens


@pytest.mark.parametrize(
    ("via", "sources", "loaded"), [("host", [-1, -1, -1, 0, -1], {4: 12}), ("gpu", [-1, -1, -1, -1, 1], {})]
)
def test_host_memory_is_a_source_and_a_holder(via: str, sources: list[int], loaded: dict[int, int]) -> None:
    """The first prompt's 16 tokens lie in the first replica's host memory, all but a block there alone, as the fourth comes to the second replica: it pulls from host to host.

    The fifth finds them in the first replica's own. From GPU to GPU the fourth computes them, and the fifth pulls them.
    """
    heads = (((1, 16), (2, 4)), ((3, 16), (4, 4)), ((5, 32), (6, 4)), ((1, 16), (7, 4)), ((1, 16), (8, 4)))
    trace = make_trace([Ask(str(row), head, 2, at=20.0 * row) for row, head in enumerate(heads)])
    config = scheduler_config(num_gpu_blocks=12, block_size=4, max_model_len=44, async_scheduling=False)
    tier = OffloadConfig(40, 0.0, 0.0, 1.0, 0.0, reports_at_start=True, block_bytes=32)
    kv = ReplicaKV((KVGroup("full", None, 1, 4, 8),), 1)
    sharing = PullSharing(PullOptions(8, via), NetworkCosts(8, 0, 0, 0), 8.0)
    pool = Pool(config, ONE_SECOND, 2, kv=kv, modes=Modes(offload=tier))
    found = served(trace, FleetPlan((pool,), "round_robin", sharing=sharing))
    assert isinstance(found.shared, PullRecords)
    assert found.shared.source.tolist() == sources
    offload = found.merged.offload
    assert offload is not None
    assert dict(zip(offload.loaded_rows.tolist(), offload.loaded_tokens.tolist(), strict=True)) == loaded
