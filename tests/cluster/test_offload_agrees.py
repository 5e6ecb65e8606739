"""Replicas with a CPU tier do what naive ones do, alone and behind routers."""

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.clients import AT_THEIR_TIMES, Clients
from sim.cluster.dynamics import Dynamics
from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.simulation import simulate
from sim.engine.config import SchedulerConfig
from sim.engine.walking import vain_calls
from sim.engine.walking.modes import Modes
from sim.errors import ConfigError
from sim.specs.kv_transfer import OffloadConfig
from sim.workload.trace import Trace
from tests.cluster.test_changes_agree import assert_same_run as assert_same_changing_run
from tests.cluster.test_changes_agree import dynamics
from tests.cluster.test_clusters_agree import assert_same_run
from tests.cluster.test_conservation import assert_all_ended_once, assert_all_is_free, watched_engines
from tests.cluster.tiers import tiers
from tests.conformance.case import RecordedStepTime
from tests.engine.test_engines_agree import Telling
from tests.makers import ONE_SECOND, Ask, make_config, make_trace
from tests.properties import engine_examples as examples
from tests.reference import managed as changing
from tests.reference.cluster import Served, simulate_cluster, with_cpu_tier
from tests.reference.managed import ServedChanging
from tests.workloads import GROUPS, STATEFUL, step_times, tight_config, traces, with_groups

POLLING_S = 2.0  # times of these workloads are whole seconds
ROUTERS = (
    "round_robin",
    "least_loaded",
    "llm_d:scrape_interval_s=7,lru_blocks=3",
    "llm_d_precise:scrape_interval_s=7",
    "llm_d:scrape_interval_s=7,lru_blocks=3,prefix=1,cpu_prefix=1,cpu_lru_blocks=12",
    "llm_d_precise:scrape_interval_s=7,cpu_weight=0.5",
)


@st.composite
def workloads(draw: st.DrawFn, *, caches_prefixes: bool | None = None) -> tuple[Trace, SchedulerConfig]:
    """Few blocks on the GPU, so that what was there is often on the CPU alone."""
    trace = draw(traces())
    config = tight_config(
        draw,
        trace,
        least_spare=4,
        scheduler_reserve_full_isl=st.booleans(),
        kv_offloading_size=st.just(1.0),
        enable_prefix_caching=st.sampled_from((True, True, False) if caches_prefixes is None else (caches_prefixes,)),
    )
    return trace, draw(with_groups(config, (*GROUPS, *STATEFUL))) if config.engine.enable_prefix_caching else config


@examples(60)
@given(
    workload=workloads(),
    tier=tiers,
    step_time=step_times,
    num_replicas=st.integers(1, 3),
    router=st.sampled_from(ROUTERS),
    clients=st.sampled_from((AT_THEIR_TIMES, Clients(max_concurrency=3))),
)
def test_replicas_with_a_cpu_tier(
    workload: tuple[Trace, SchedulerConfig],
    tier: OffloadConfig,
    step_time: RecordedStepTime,
    num_replicas: int,
    router: str,
    clients: Clients,
) -> None:
    """The same steps and times, or no end; what came from the GPU's own cache and from the CPU makes up what was cached."""
    trace, config = workload
    timed = Telling(step_time)

    def naive() -> Served:
        return simulate_cluster(
            trace,
            config,
            timed,
            num_replicas=num_replicas,
            router=router,
            clients=clients,
            idle_sleep_s=POLLING_S,
            tier=tier,
        )

    try:
        with patch.object(vain_calls, "MOST_VAIN_LOADS", 100):
            modes = Modes(offload=tier, idle_sleep_s=POLLING_S)
            found = simulate(trace, FleetPlan.alike(config, timed, num_replicas, router, modes=modes), clients=clients)
    except ConfigError:
        with pytest.raises(ConfigError, match="came to nothing"):
            naive()
        return
    assert_same_run(found, naive())
    records = found.merged
    assert records.offload is not None
    is_loaded_once = len(np.unique(records.offload.loaded_rows)) == len(records.offload.loaded_rows)
    if is_loaded_once and not records.requests.num_preemptions.any():
        from_both = records.prefix_cache_hits + records.offload.external_prefix_cache_hits
        num_loads = len(records.offload.loaded_rows)  # of a prompt that is there whole, a token is computed again
        assert from_both - num_loads <= int(records.requests.num_cached_tokens.sum()) <= from_both
    assert np.all(records.offload.tokens_by_row(len(trace)) % config.block_size == 0)


@examples(100)
@given(
    workload=workloads(caches_prefixes=True),
    tier=tiers,
    step_time=step_times,
    num_replicas=st.integers(1, 3),
    router=st.sampled_from(("least_loaded", "round_robin", "power_of_two")),
    changes=dynamics(),
    clients=st.sampled_from((AT_THEIR_TIMES, Clients(max_concurrency=3))),
)
def test_replicas_with_a_cpu_tier_that_come_and_go(
    workload: tuple[Trace, SchedulerConfig],
    tier: OffloadConfig,
    step_time: RecordedStepTime,
    num_replicas: int,
    router: str,
    changes: Dynamics,
    clients: Clients,
) -> None:
    """A tier is lost with its replica, whose successor begins with an empty one; requests that are given up leave there what was computed of them."""
    trace, config = workload
    timed = Telling(step_time)
    modes = Modes(offload=tier, idle_sleep_s=POLLING_S)
    plan = FleetPlan.alike(config, timed, num_replicas, router, modes=modes, dynamics=changes, start_up_s=3.0)

    def naive() -> ServedChanging:
        pools = [changing.Pool(timed, num_replicas, 3.0)]
        polling = with_cpu_tier(config, tier, POLLING_S)
        return changing.simulate_changing(
            trace, config, pools, router=router, dynamics=changes, clients=clients, modes=polling
        )

    try:
        with patch.object(vain_calls, "MOST_VAIN_LOADS", 100), watched_engines() as engines:
            found = simulate(trace, plan, clients=clients)
    except ConfigError:
        with pytest.raises(ConfigError, match="came to nothing"):
            naive()
        return
    assert_same_changing_run(found, naive())
    assert_all_ended_once(found)
    assert_all_is_free(engines)


def test_of_a_prompt_that_is_given_up_what_was_scheduled_is_kept() -> None:
    """Four passes of 4 of its 40 tokens begin before its client has gone, which the next one with that prompt loads."""
    trace = make_trace([Ask(name, ((0, 40),), 2, at) for name, at in (("a", 0.0), ("b", 60.0))])
    config = make_config(
        num_gpu_blocks=30, block_size=2, max_num_batched_tokens=4, async_scheduling=False, enable_prefix_caching=False,
        kv_offloading_size=1.0,
    )  # fmt: skip
    modes = Modes(offload=OffloadConfig(30, 0, 0, 0, 0, reports_at_start=True, block_bytes=10), idle_sleep_s=POLLING_S)
    changes = Dynamics.parse({"admission": {"timeout_s": 3.5}})
    found = simulate(trace, FleetPlan.alike(config, ONE_SECOND, 1, "round_robin", modes=modes, dynamics=changes)).merged
    assert found.offload is not None
    assert found.offload.tokens_by_row(2).tolist() == [0, 16]


def test_a_counted_decode_may_have_to_wait_for_a_store() -> None:
    """Without prefix caching blocks that come free lie on a pile, the last on top: b's fourth decode takes one of a's that is still being stored.

    The store began with the second step and lasts 30 s; the block on top of the pile was that of a's answer, which is not stored.
    """
    trace = make_trace([Ask("a", 10, 2), Ask("b", 7, 8)])
    config = make_config(
        num_gpu_blocks=20, block_size=2, async_scheduling=False, enable_prefix_caching=False, kv_offloading_size=1.0
    )
    tier = OffloadConfig(8, 1, 1, 25, 1, reports_at_start=True, block_bytes=10)
    modes = Modes(offload=tier, idle_sleep_s=POLLING_S)
    found = simulate(trace, FleetPlan.alike(config, ONE_SECOND, 1, "round_robin", modes=modes))
    naive = simulate_cluster(
        trace, config, ONE_SECOND, num_replicas=1, router="round_robin", idle_sleep_s=POLLING_S, tier=tier
    )
    assert_same_run(found, naive)
    steps = found.merged.steps
    assert steps.start_s[:6].tolist() == [0, 1, 2, 3, 1 + 25 + 5, 32]
