"""Fleets that change and in which pools hand KV over do what naive ones do: replicas of either role scale, fail and drain, transfers break off,
leases end, and requests are tried again.
"""

from dataclasses import replace
from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.changing_disaggregation import ChangingDisaggregatedFleet
from sim.cluster.clients import Clients
from sim.cluster.dynamics import Dynamics
from sim.cluster.fleet_plan import Disaggregation, FleetPlan
from sim.cluster.leases import Lease
from sim.cluster.records import ClusterRecords
from sim.cluster.simulation import simulate
from sim.cluster.users import Users
from tests.cluster.test_changes_agree import policies
from tests.cluster.test_disaggregation_agrees import POLLING_S, Fleet, costs, fleets
from tests.configs import changed
from tests.properties import engine_examples as examples
from tests.reference.managed_pools import Rules, simulate_managed_pools

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
    """A naive cache keeps what an attempt left there for the next one at the same replica; the product's only what others share."""
    prefill, decode = (
        replace(pool, config=changed(pool.config, enable_prefix_caching=False))
        for pool in (fleet.prefill, fleet.decode)
    )
    return fleet._replace(prefill=prefill, decode=decode)


@examples(150)
@given(
    fleet=fleets(),
    changes=policies(2, more_backoff_s=0.25),
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
    """How and when each request ended and by whom, every replica's life, every pull; nobody tries again at the instant of others' arrivals or passes."""
    clients = Clients(users)
    if changes.recovery.lost != "fail":
        fleet = without_caches(fleet)
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
