"""Fleets that change and in which pools hand KV over do what naive ones do: replicas of either role scale, fail and drain, transfers break off,
leases end, and requests are tried again.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.changing_disaggregation import ChangingDisaggregatedFleet
from sim.cluster.clients import Clients
from sim.cluster.dynamics import Dynamics
from sim.cluster.fleet_plan import Disaggregation, FleetPlan
from sim.cluster.leases import Lease
from sim.cluster.network import NetworkCosts
from sim.cluster.records import ClusterRecords
from sim.cluster.simulation import simulate
from sim.cluster.users import Users
from sim.engine.config import SchedulerConfig
from sim.memory.kv_cache import KVGroup
from sim.memory.transfers import ReplicaKV
from tests.cluster.test_changes_agree import policies
from tests.cluster.test_disaggregation_agrees import POLLING_S, Fleet, costs, fleets
from tests.cluster.test_handing_ranks_agree import Servers, servers
from tests.configs import changed, scheduler_config
from tests.conformance.case import RecordedStepTime
from tests.makers import ONE_SECOND, Ask, make_trace
from tests.properties import engine_examples as examples
from tests.reference.disaggregation import Pool, ServerKind
from tests.reference.managed_handing_servers import HandingServers
from tests.reference.managed_pools import ManagedPools, Rules, simulate_managed_pools
from tests.reference.modes import Script
from tests.workloads import planned

rules = st.builds(
    Rules,
    costs=costs,
    least_uncached_tokens=st.sampled_from((1, 1, 6)),
    lease_s=st.sampled_from((6.5, 30.5, 600.5)),
    is_renewed=st.booleans(),
    recomputes=st.booleans(),
    idle_sleep_s=st.just(POLLING_S),
)
FleetT = TypeVar("FleetT", bound=Fleet)
routers = st.sampled_from(("round_robin", "least_loaded", "random", "power_of_two"))


def run(
    fleet: Fleet, changes: Dynamics, how: Rules, start_up_s: float, router: str, clients: Clients
) -> ClusterRecords:
    """With engines that poll as seldom as the naive ones."""
    pools = (fleet.planned(0, start_up_s), fleet.planned(1, start_up_s))
    handing = Disaggregation(
        how.costs,
        f"prefix_based:non_cached_tokens={how.least_uncached_tokens}",
        lease=Lease(how.lease_s, how.is_renewed),
        kv_load_failure_policy="recompute" if how.recomputes else "fail",
    )
    with patch.object(ChangingDisaggregatedFleet, "idle_sleep_s", POLLING_S):
        return simulate(fleet.trace, FleetPlan(pools, router, changes, handing), clients=clients)


def without_cache(config: SchedulerConfig) -> SchedulerConfig:
    """Whose requests then keep their states from beginning to end."""
    uncached = changed(config, enable_prefix_caching=False)
    return planned(config.kv_groups, uncached) if config.keeps_states else uncached


def without_caches(fleet: FleetT) -> FleetT:
    """And so without CPU tiers. A naive cache keeps what an attempt left there for the next one at the same replica; the product's only what others share."""
    prefill, decode = (
        replace(pool, config=without_cache(pool.config), offload=None) for pool in (fleet.prefill, fleet.decode)
    )
    return fleet._replace(prefill=prefill, decode=decode, tiers=(None, None))


def without_ties(changes: Dynamics, how: Rules) -> Dynamics:
    """Nobody tries again at the very instant at which an engine's call tells of KV that is lost: a naive engine has polled by then, the product's skips what brings nothing."""
    recovery = changes.recovery
    if how.recomputes or recovery.backoff_s:
        return changes
    return replace(changes, recovery=replace(recovery, backoff_s=1.0))


@examples(300)
@given(
    fleet=fleets(with_tiers=True) | servers(),
    changes=policies(2),
    how=rules,
    start_up_s=st.sampled_from((0.0, 3.0, 20.0)),
    router=routers,
    users=st.sampled_from((None, None, Users(3, 1.0))),
)
def test_fleets_that_change(
    fleet: Fleet,
    changes: Dynamics,
    how: Rules,
    start_up_s: float,
    router: str,
    users: Users | None,
) -> None:
    """Of replicas, or of servers of several engines in lock step or not: how and when each request ended and by whom, every life, every pull, and every wave of
    those that were there in turn.
    """
    clients = Clients(users)
    if changes.recovery.lost != "fail":
        fleet = without_caches(fleet)
    assert_same_run(fleet, without_ties(changes, how), how, start_up_s, router, clients)


def assert_same_run(
    fleet: Fleet, changes: Dynamics, how: Rules, start_up_s: float, router: str, clients: Clients
) -> ClusterRecords:
    """Returns what was found."""
    found = run(fleet, changes, how, start_up_s, router, clients)
    expected = simulate_managed_pools(
        *(fleet.trace, (fleet.prefill, fleet.decode), changes, how),
        start_up_s=start_up_s,
        router=router,
        clients=clients,
        kind=HandingServers if fleet.prefill.server or fleet.decode.server else ManagedPools,
    )
    requests, handovers = found.merged.requests, found.handovers
    assert handovers is not None
    assert requests.rejected == expected.requests.rejected
    assert requests.failed == expected.requests.failed
    for name in ("arrival_s", "first_token_s", "finish_s", "generated_tokens"):
        wanted = getattr(expected.requests, name)
        np.testing.assert_allclose(getattr(requests, name), wanted, rtol=1e-9, err_msg=name)
    assert found.replica.tolist() == expected.replica
    assert found.lives == expected.lives
    assert np.flatnonzero(handovers.are_handed_over).tolist() == sorted(expected.pulls)
    for row, (start_s, end_s, num_bytes, _) in expected.pulls.items():
        np.testing.assert_allclose([handovers.pull_start_s[row], handovers.pull_end_s[row]], [start_s, end_s])
        assert handovers.pulled_bytes[row] == num_bytes
    assert (handovers.num_failed, handovers.num_expired) == (expected.num_failed, expected.num_expired)
    assert [ranks.num_waves for ranks in found.ranks] == list(expected.num_waves)
    return found


@pytest.mark.parametrize(("receiver_lost_s", "sender_lost_s"), [(2, 2), (2, 3), (3, 2)])
def test_both_ends_of_a_pull_are_lost(receiver_lost_s: int, sender_lost_s: int) -> None:
    """A pull from 1 to 5 s: once the sender is lost there is no KV left whose lease could end at 10 s."""
    trace = make_trace([Ask("lost", 1, 1), Ask("served", 1, 1, 20.0)])
    config = scheduler_config(
        num_gpu_blocks=3, block_size=1, max_model_len=3, async_scheduling=False, enable_prefix_caching=False
    )
    kv = ReplicaKV((KVGroup("full", None, 1, 1, 8),), 1)
    pool = Pool(config, ONE_SECOND, kv, 1, scripts=[Script()] * 2)
    fleet = Fleet(trace, pool, pool)
    losses = [{"at_s": receiver_lost_s, "replica": 1}, {"at_s": sender_lost_s, "replica": 0}]
    changes = Dynamics.parse({"faults": [loss | {"for_s": 0} for loss in losses], "recovery": {"lost": "fail"}})
    how = Rules(NetworkCosts(2, 0, 0), lease_s=9.0, is_renewed=False, idle_sleep_s=POLLING_S)
    found = assert_same_run(fleet, changes, how, 0.0, "round_robin", Clients())
    assert list(found.merged.requests.failed) == [0]
    assert found.handovers is not None
    assert (found.handovers.num_failed, found.handovers.num_expired) == (int(sender_lost_s < receiver_lost_s), 0)


ADDRESS_A_RANK = ServerKind(2, 1, rules={"sync_interval": 1, "looks_at_once": True, "prefill_interval": 1})


def ranks_that_prefill(
    asks: Sequence[Ask], given: dict[str, Any], *, handshake_s: float = 0.0, users: Users | None = None
) -> ClusterRecords:
    """Two ranks by turns, with an address each, for a replica that answers; a prompt takes as many seconds as it has tokens, and so does its KV."""
    config = scheduler_config(num_gpu_blocks=200, block_size=1, max_model_len=100, async_scheduling=False)
    kv = ReplicaKV((KVGroup("full", None, 1, 1, 8),), 1)
    scripts = [Script()] * len(asks)
    prefill = Pool(config, RecordedStepTime(0, 1, 0), kv, 1, scripts=scripts, server=ADDRESS_A_RANK)
    decode = Pool(config, ONE_SECOND, kv, 1, scripts=scripts)
    how = Rules(NetworkCosts(8, 0, 0, handshake_s), lease_s=600.5, idle_sleep_s=POLLING_S)
    fleet = Servers(make_trace(asks), prefill, decode)
    return assert_same_run(fleet, Dynamics.parse(given), how, 5.0, "round_robin", Clients(users))


def test_ranks_of_a_server_that_was_lost_have_met_nobody() -> None:
    """A handshake of 3 s before the first pull from each rank, and again after the server was lost."""
    asks = [Ask(str(row), 4, 1, at=20.0 * row) for row in range(6)]
    found = ranks_that_prefill(asks, {"faults": [{"at_s": 70, "replica": 0, "for_s": 0}]}, handshake_s=3.0)
    assert found.handovers is not None
    assert (found.handovers.pull_end_s - found.handovers.pull_start_s).tolist() == [7, 7, 4, 4, 7, 7]
    assert found.handovers.prefill_replica.tolist() == [0, 1] * 3


def test_a_loss_counts_at_the_address_of_the_rank_that_computed() -> None:
    """The second rank's prompt is lost at 22 s, so that rank is shut out till 82 s."""
    asks = [Ask(str(row), 4, 1, at=20.0 * row) for row in range(6)]
    recovery = {"circuit_failures": 1, "circuit_open_s": 60, "retries": 0}
    found = ranks_that_prefill(asks, {"faults": [{"at_s": 22, "replica": 0, "for_s": 0}], "recovery": recovery})
    assert found.handovers is not None
    assert list(found.merged.requests.failed) == [1]
    assert found.handovers.prefill_replica.tolist() == [0, -1, 0, 0, 0, 1]


def test_prompts_of_all_ranks_tell_how_late_a_server_is() -> None:
    """That of the second rank took 20 s, and so at 120 s the last half minute's have a mean of over 10 s, which a second server is to mend."""
    asks = [Ask(str(row), 20 if row == 5 else 2, 1, at=15.0 * row) for row in range(8)]
    planner = {"policy": "dynamo", "ttft_s": 10, "itl_s": 9, "interval_s": 30, "throughput_interval_s": 30, "max": 2}
    found = ranks_that_prefill(asks, {"autoscale": [planner, None]})
    assert [(life.pool, life.started_s) for life in found.lives] == [(0, 0.0), (0, 120.0), (1, 0.0)]
