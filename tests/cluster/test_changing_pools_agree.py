"""Fleets that change and in which pools hand KV over do what naive ones do: replicas of either role scale, fail and drain, transfers break off,
leases end, and requests are tried again.
"""

from dataclasses import replace
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
from sim.memory.kv_cache import KVGroup
from sim.memory.transfers import ReplicaKV
from tests.cluster.test_changes_agree import policies
from tests.cluster.test_disaggregation_agrees import POLLING_S, Fleet, costs, fleets
from tests.configs import changed, scheduler_config
from tests.makers import ONE_SECOND, Ask, make_trace
from tests.properties import engine_examples as examples
from tests.reference.disaggregation import Pool
from tests.reference.managed_pools import Rules, simulate_managed_pools
from tests.reference.modes import Script

rules = st.builds(
    Rules,
    costs=costs,
    least_uncached_tokens=st.sampled_from((1, 1, 6)),
    lease_s=st.sampled_from((6.5, 30.5, 600.5)),
    is_renewed=st.booleans(),
    recomputes=st.booleans(),
    idle_sleep_s=st.just(POLLING_S),
)
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


def without_caches(fleet: Fleet) -> Fleet:
    """And so without CPU tiers. A naive cache keeps what an attempt left there for the next one at the same replica; the product's only what others share."""
    prefill, decode = (
        replace(pool, config=changed(pool.config, enable_prefix_caching=False), offload=None)
        for pool in (fleet.prefill, fleet.decode)
    )
    return fleet._replace(prefill=prefill, decode=decode, tiers=(None, None))


@examples(150)
@given(
    fleet=fleets(with_tiers=True),
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
    """How and when each request ended and by whom, every replica's life, every pull."""
    clients = Clients(users)
    if changes.recovery.lost != "fail":
        fleet = without_caches(fleet)
    assert_same_run(fleet, changes, how, start_up_s, router, clients)


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
