"""No request is lost in silence, and no run goes on for ever: who can never run is rejected, and what else waits for ever is told."""

from functools import partial
from unittest.mock import patch

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sim.cluster import fleet_plan
from sim.cluster.clients import AT_THEIR_TIMES, Clients
from sim.cluster.dynamics import Dynamics
from sim.cluster.fleet_plan import Disaggregation, FleetPlan, Pool, ServerPlan
from sim.cluster.network import NetworkCosts
from sim.cluster.simulation import simulate
from sim.cluster.users import Users
from sim.engine.config import KVGroup, SchedulerConfig
from sim.engine.rank_group import LockStepRules
from sim.engine.request_source import RequestSource
from sim.engine.walking.acceptance import DrawnAcceptance
from sim.engine.walking.modes import PLAIN, POLLING_S, Modes
from sim.errors import ConfigError
from sim.specs.speculation import Speculation
from tests.cluster.test_changes_agree import dynamics
from tests.cluster.test_conservation import assert_all_ended_once, assert_all_is_free, clients, routers, watched_engines
from tests.cluster.test_pipeline_agrees import Staged
from tests.configs import changed, scheduler_config
from tests.engine.test_modes_agree import speculations
from tests.makers import ONE_SECOND, Ask, make_trace
from tests.properties import engine_examples as examples
from tests.workloads import SINCE_0_12, Workload, workloads

ACCEPTANCE = DrawnAcceptance((0.8, 0.5, 0.5, 0.5))
EAGLE = Modes(speculation=Speculation(2, "eagle"), acceptance=ACCEPTANCE)
TINY = scheduler_config(block_size=1, num_gpu_blocks=3, max_model_len=3, enable_prefix_caching=False)


def test_who_never_finds_room_for_drafts_is_rejected() -> None:
    """One token of prompt and KV for two: but EAGLE's two drafts, and the slots behind these, may want a third, which is max_model_len."""
    found = simulate(make_trace([Ask("A", 1, 1)]), FleetPlan.alike(TINY, ONE_SECOND, modes=EAGLE)).merged.requests
    assert dict(found.rejected) == {
        0: "1 tokens of prompt and output, and 2 slots ahead of them, need more than the 2 KV blocks there are"
    }
    roomy = FleetPlan.alike(changed(TINY, num_gpu_blocks=4), ONE_SECOND, modes=EAGLE)
    assert simulate(make_trace([Ask("A", 1, 1)]), roomy).merged.requests.generated_tokens.tolist() == [1]


@pytest.mark.parametrize(
    ("modes", "groups", "num_ahead"),
    [
        (PLAIN, 1, 0),
        (Modes(speculation=Speculation(3)), 1, 3),
        (Modes(speculation=Speculation(3, "eagle")), 1, 6),
        (Modes(speculation=Speculation(3, "dflash")), 2, 7),
        (Modes(allocates_contiguously=True), 1, 100),
    ],
)
def test_slots_ahead(modes: Modes, groups: int, num_ahead: int) -> None:
    """The longest request has room for its tokens, those ahead of them, and no more; in each KV group."""
    config = changed(TINY, num_gpu_blocks=groups * 40 + 1, max_model_len=100, kv_groups=(KVGroup(),) * groups)
    asks = (
        [Ask("fits", 30, 11 - num_ahead), Ask("does not", 30, 12 - num_ahead)] if num_ahead < 10 else [Ask("A", 1, 1)]
    )
    source = FleetPlan.alike(config, ONE_SECOND, modes=modes).source(make_trace(asks))
    assert list(source.rejected) == [len(asks) - 1]


def test_who_never_finds_room_for_its_padding_is_rejected() -> None:
    """B finds all but its last token cached, which is padded to a verification of four: slots for eight tokens, of six that it has."""
    config = scheduler_config(block_size=1, num_gpu_blocks=7, max_model_len=9, async_scheduling=False)
    modes = Modes(speculation=Speculation(3), acceptance=ACCEPTANCE)
    trace = make_trace([Ask("A", ((1, 5),), 2), Ask("B", ((1, 5),), 2, at=30)])
    assert list(simulate(trace, FleetPlan.alike(config, ONE_SECOND, modes=modes)).merged.requests.rejected) == [0, 1]
    roomy = FleetPlan.alike(changed(config, num_gpu_blocks=10), ONE_SECOND, modes=modes)
    assert simulate(trace, roomy).merged.requests.num_cached_tokens.tolist() == [0, 4]


@pytest.mark.parametrize("modes", [EAGLE, Modes(num_stages=2, idle_sleep_s=POLLING_S), Modes(num_stages=2), PLAIN])
@pytest.mark.parametrize("changes", [None, Dynamics.parse({"autoscale": {"policy": "hpa", "max": 2}})])
@pytest.mark.parametrize("router", ["round_robin", "least_loaded", "llm_d"])
@pytest.mark.parametrize("who", [AT_THEIR_TIMES, Clients(Users(2, 0.0))])
def test_what_waits_for_ever_is_told(modes: Modes, changes: Dynamics | None, router: str, who: Clients) -> None:
    """Requests that were let in though nothing fits: whoever drives the engine says so, and the run ends."""
    letting_in = partial(RequestSource, capacity_too=False)
    timed = Staged(ONE_SECOND, (1, 1), 0.0) if modes.num_stages > 1 else ONE_SECOND
    plan = FleetPlan.alike(changed(TINY, max_model_len=9), timed, 1, router, dynamics=changes, modes=modes)
    with (
        patch.object(fleet_plan, "RequestSource", letting_in),
        pytest.raises(
            ConfigError, match=r"wait for ever: from .* on replica 0 can compute nothing for the 2 that wait"
        ),
    ):
        simulate(make_trace([Ask("A", 5, 3), Ask("B", 5, 1)]), plan, clients=who)


def test_an_engine_of_a_server_is_told_by_its_number_in_the_fleet() -> None:
    """The second server's first engine, which nobody else waits for, as users send a request after the other."""
    letting_in = partial(RequestSource, capacity_too=False)
    roomy, tiny = (changed(TINY, max_model_len=9, num_gpu_blocks=blocks) for blocks in (20, 3))
    pools = (Pool(roomy, ONE_SECOND), Pool(tiny, ONE_SECOND, 2, server=ServerPlan(2)))
    with (
        patch.object(fleet_plan, "RequestSource", letting_in),
        pytest.raises(
            ConfigError, match=r"wait for ever: from .* on replica 1 can compute nothing for the 1 that wait"
        ),
    ):
        simulate(
            make_trace([Ask("A", 5, 3), Ask("B", 5, 1)]), FleetPlan(pools, "round_robin"), clients=Clients(Users(2))
        )


@pytest.mark.parametrize("who", [AT_THEIR_TIMES, Clients(Users(2, 0.0))])
@pytest.mark.parametrize("is_async", [False, True])
def test_ranks_with_stages_do_not_wait_for_ever(who: Clients, *, is_async: bool) -> None:
    """Where vLLM runs dummies for as long as nobody comes."""
    letting_in = partial(RequestSource, capacity_too=False)
    config = changed(TINY, max_model_len=9, async_scheduling=is_async)
    modes, timed = Modes(num_stages=2, idle_sleep_s=POLLING_S), Staged(ONE_SECOND, (1, 1), 0.0)
    plan = FleetPlan.alike(config, timed, 2, "vllm_dp", modes=modes, lock_step=LockStepRules())
    with (
        patch.object(fleet_plan, "RequestSource", letting_in),
        pytest.raises(
            ConfigError, match=r"wait for ever: from .* on replica 0 can compute nothing for the 1 that wait"
        ),
    ):
        simulate(make_trace([Ask("A", 5, 3), Ask("B", 1, 1)]), plan, clients=who)


@pytest.mark.parametrize("is_async", [False, True])
def test_ranks_that_hand_kv_over_do_not_wait_for_ever(*, is_async: bool) -> None:
    """For blocks that nobody has: dummies until the end of time are told of, where vLLM runs them."""
    letting_in = partial(RequestSource, capacity_too=False)
    roomy, tiny = (
        changed(TINY, max_model_len=9, num_gpu_blocks=blocks, async_scheduling=is_async) for blocks in (20, 3)
    )
    ranks, costs = ServerPlan(2, LockStepRules()), NetworkCosts(1e9, 0.0, 0.0)
    pools = (
        Pool(roomy, ONE_SECOND, 2, role="prefill", server=ranks),
        Pool(tiny, ONE_SECOND, 2, role="decode", server=ranks),
    )
    plan = FleetPlan(pools, "round_robin", disaggregation=Disaggregation(costs))
    with (
        patch.object(fleet_plan, "RequestSource", letting_in),
        pytest.raises(
            ConfigError, match=r"requests wait for ever: at .* the first of 1 needs more than the 2 free KV blocks"
        ),
    ):
        simulate(make_trace([Ask("A", 5, 3)]), plan)


def goes_on(speculation: Speculation, config: SchedulerConfig) -> bool:
    """Whether a deployment with these would be let through: its budget has room for the drafts, and chunks for what must not be cut."""
    engine, num_tokens = config.engine, 1 + speculation.num_speculative_tokens
    budget = min(config.token_budget, engine.max_num_batched_tokens - speculation.num_draft_slots)
    if not engine.enable_chunked_prefill:
        num_tokens = max(num_tokens, config.max_model_len - 1)
    ahead = speculation.num_prefill_lookahead
    return budget >= num_tokens and not (1 <= engine.long_prefill_token_threshold < ahead > 1)


@st.composite
def speculating(draw: st.DrawFn, config: SchedulerConfig) -> Modes:
    speculation = draw(speculations(is_async=config.engine.async_scheduling))
    assume(goes_on(speculation, config))
    return Modes(speculation=speculation, acceptance=ACCEPTANCE)


@examples(100)
@given(
    workload=workloads(versions=SINCE_0_12),
    num_replicas=st.integers(1, 2),
    router=routers,
    changes=st.none() | dynamics(),
    clients=clients,
    data=st.data(),
)
def test_whatever_the_mode(
    workload: Workload, num_replicas: int, router: str, changes: Dynamics | None, clients: Clients, data: st.DataObject
) -> None:
    """Every way of speculating, a stretch of memory for each request, static batches, and stages: every request ends, every run."""
    trace, config, step_time = workload
    others = (Modes(allocates_contiguously=True), Modes(batches_statically=True), Modes(num_stages=2, idle_sleep_s=1.0))
    modes = data.draw(speculating(config) | st.sampled_from(others))
    timed = Staged(step_time, (1, 1), 0.0) if modes.num_stages > 1 else step_time
    pool = Pool(config, timed, num_replicas, 3.0, modes=modes)
    with watched_engines() as engines:
        found = simulate(trace, FleetPlan((pool,), router, changes), clients=clients)
    assert_all_ended_once(found)
    assert_all_is_free(engines)
