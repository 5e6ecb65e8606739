"""Whatever the router and whatever befalls the fleet: every request ends once, its tokens are counted, all blocks come back."""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from sim.cluster import engines
from sim.cluster.clients import Clients
from sim.cluster.dynamics import Dynamics
from sim.cluster.fleet_plan import FleetPlan, Pool
from sim.cluster.network import NetworkCosts
from sim.cluster.records import ClusterRecords
from sim.cluster.routers.table import ROUTERS
from sim.cluster.simulation import simulate
from sim.cluster.users import Users
from sim.engine.core import EngineCore
from sim.engine.driven import Core
from sim.engine.walking.acceptance import DrawnAcceptance
from sim.engine.walking.core import WalkingCore
from sim.engine.walking.modes import Modes
from sim.engine.walking.rank import WalkingRank
from sim.specs.speculation import Speculation
from tests.cluster.test_changes_agree import dynamics, policies
from tests.cluster.test_changing_pools_agree import rules
from tests.cluster.test_changing_pools_agree import run as simulate_changing_pools
from tests.cluster.test_disaggregation_agrees import Fleet, costs, fleets
from tests.cluster.test_disaggregation_agrees import simulate as simulate_disaggregated
from tests.properties import engine_examples as examples
from tests.reference.managed_pools import Rules
from tests.workloads import SINCE_0_12, Workload, workloads

NUM_DRAFTS = 2
routers = st.sampled_from(sorted(ROUTERS))
clients = st.sampled_from((Clients(), Clients(open_loop=True), Clients(max_concurrency=2), Clients(Users(3, 1.0))))


@contextmanager
def watched_engines() -> Iterator[list[Core]]:
    """The engines of all replicas that a run makes."""
    made: list[Core] = []

    def watched(kind: type[EngineCore] | type[WalkingCore]) -> Any:
        def make(*given: Any, **options: Any) -> Core:
            made.append(kind(*given, **options))
            return made[-1]

        return make

    with ExitStack() as stack:
        stack.enter_context(patch.object(engines, "EngineCore", watched(EngineCore)))
        for kind in (WalkingCore, WalkingRank):
            stack.enter_context(patch.object(engines, kind.__name__, watched(kind)))
        yield made


def assert_all_ended_once(found: ClusterRecords) -> None:
    """Arrived = completed + rejected + failed; the completed have all their tokens, from a replica, and the rejected none."""
    requests = found.merged.requests
    is_completed = np.isfinite(requests.finish_s)
    completed: list[int] = np.flatnonzero(is_completed).tolist()
    assert sorted([*completed, *requests.rejected, *requests.failed]) == list(range(len(requests)))
    assert (requests.generated_tokens == requests.output_tokens)[is_completed].all()
    assert not requests.generated_tokens[list(requests.rejected)].any()
    assert (found.replica[is_completed] >= 0).all()


def assert_all_is_free(engines: list[Core]) -> None:
    """Nobody waits, runs or holds a block."""
    assert engines
    for engine in engines:
        assert engine.metrics_before(math.inf) == (0, 0, 0.0)


@examples(150)
@given(workload=workloads(versions=SINCE_0_12), num_replicas=st.integers(2, 4), router=routers, clients=clients)
def test_a_fleet_that_stays(workload: Workload, num_replicas: int, router: str, clients: Clients) -> None:
    """Each replica samples the tokens, and looks up the prompts, of the requests that it served, and no others."""
    trace, config, step_time = workload
    with watched_engines() as engines:
        found = simulate(trace, FleetPlan.alike(config, step_time, num_replicas, router), clients=clients)
    assert_all_ended_once(found)
    assert_all_is_free(engines)
    requests = found.merged.requests
    for number, records in enumerate(found.replicas):
        served = found.replica == number
        assert records.steps.num_sampled.sum() == requests.generated_tokens[served].sum()
        assert records.prefix_cache_queries == requests.prompt_tokens[served].sum()
        assert records.prefix_cache_hits == requests.num_cached_tokens[served].sum()


@examples(250)
@given(
    workload=workloads(versions=SINCE_0_12),
    num_replicas=st.integers(1, 3),
    router=routers,
    changes=dynamics(),
    start_up_s=st.sampled_from((0.0, 3.0, 20.0)),
    clients=clients,
)
def test_a_fleet_that_changes(
    workload: Workload, num_replicas: int, router: str, changes: Dynamics, start_up_s: float, clients: Clients
) -> None:
    """Replicas that scale, fail and slow down; requests that are turned away, aborted and tried again, whose tokens may be lost."""
    trace, config, step_time = workload
    plan = FleetPlan.alike(config, step_time, num_replicas, router, dynamics=changes, start_up_s=start_up_s)
    with watched_engines() as engines:
        found = simulate(trace, plan, clients=clients)
    assert_all_ended_once(found)
    assert_all_is_free(engines)
    assert found.merged.steps.num_sampled.sum() >= found.merged.requests.generated_tokens.sum()


@examples(100)
@given(
    workload=workloads(versions=SINCE_0_12),
    num_replicas=st.integers(1, 3),
    router=routers,
    changes=dynamics(),
    method=st.sampled_from(("ngram_gpu", "eagle", "draft_model")),
    clients=clients,
)
def test_a_fleet_that_changes_and_speculates(
    workload: Workload, num_replicas: int, router: str, changes: Dynamics, method: str, clients: Clients
) -> None:
    """What is sampled and what is accepted of drafts are the tokens, or more where requests end within their drafts."""
    trace, config, step_time = workload
    speculation = Speculation(NUM_DRAFTS, method)
    budget = min(config.token_budget, config.engine.max_num_batched_tokens - speculation.num_draft_slots)
    assume(budget > NUM_DRAFTS)  # else a request that resumes waits for ever, which is refused
    modes = Modes(speculation=speculation, acceptance=DrawnAcceptance((0.8, 0.5)))
    pool = Pool(config, step_time, num_replicas, 3.0, modes=modes)
    with watched_engines() as engines:
        found = simulate(trace, FleetPlan((pool,), router, changes), clients=clients)
    assert_all_ended_once(found)
    assert_all_is_free(engines)
    steps = found.merged.steps
    assert steps.num_sampled.sum() + steps.num_accepted.sum() >= found.merged.requests.generated_tokens.sum()
    assert (steps.num_accepted <= steps.num_drafts).all()


@examples(100)
@given(
    fleet=fleets(),
    changes=policies(2),
    how=rules,
    start_up_s=st.sampled_from((0.0, 20.0)),
    router=st.sampled_from(("round_robin", "least_loaded")),
)
def test_a_fleet_that_changes_and_of_which_some_prefill_for_others(
    fleet: Fleet, changes: Dynamics, how: Rules, start_up_s: float, router: str
) -> None:
    """Whatever is lost on its way, nobody holds a block in the end, on either side."""
    with watched_engines() as engines:
        found = simulate_changing_pools(fleet, changes, how, start_up_s, router, Clients())
    assert_all_ended_once(found)
    assert_all_is_free(engines)


@examples(60)
@given(fleet=fleets(), network=costs, least_uncached_tokens=st.sampled_from((1, 6, 12)))
def test_a_fleet_of_which_some_prefill_for_others(
    fleet: Fleet, network: NetworkCosts, least_uncached_tokens: int
) -> None:
    """The replicas that answer sample all tokens, or accept them; the others one a prompt, and their blocks are free when they have been pulled."""
    with watched_engines() as engines:
        found = simulate_disaggregated(fleet, network, least_uncached_tokens)
    assert_all_ended_once(found)
    assert_all_is_free(engines)
    requests, handovers = found.merged.requests, found.handovers
    assert handovers is not None
    num_prefill = fleet.prefill.num_replicas
    sampled = [int(records.steps.num_sampled.sum()) for records in found.replicas]
    num_accepted = sum(int(records.steps.num_accepted.sum()) for records in found.replicas)
    num_dropped = sum(sampled[num_prefill:]) + num_accepted - int(requests.generated_tokens.sum())
    assert num_dropped >= 0 if fleet.drafts else num_dropped == 0
    assert sum(sampled[:num_prefill]) == np.count_nonzero(handovers.are_handed_over)
