"""Servers of several engines that hand KV over, in lock step or not, do what naive ones do."""

from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster import fleet_plan
from sim.cluster.fleet_plan import ServerPlan
from sim.cluster.network import NetworkCosts
from sim.engine.rank_group import LockStepRules
from sim.specs.speculation import Speculation
from tests.cluster.drafts import Drafts, naive_scripts, naive_speculation
from tests.cluster.test_disaggregation import KV, STEP, a_trace
from tests.cluster.test_disaggregation_agrees import POLLING_S, Fleet, assert_same_handovers, costs, fleets, simulate
from tests.configs import scheduler_config
from tests.engine.test_modes_agree import with_adapters
from tests.properties import engine_examples as examples
from tests.reference.disaggregation import Pool, ServerKind, simulate_disaggregated
from tests.reference.modes import Loras

LOCK_STEP = st.fixed_dictionaries(
    {
        "sync_interval": st.sampled_from((1, 3, 16)),
        "looks_at_once": st.booleans(),
        "prefill_interval": st.sampled_from((1, 1, 2)),
    }
)
BALANCERS = ("vllm_dp:interval_s=7", "vllm_dp:interval_s=3")
sizes = st.sampled_from(((1, 1), (2, 2), (3, 3), (2, 1), (3, 1), (4, 2)))
"""Engines of a server, and of these behind each of its addresses."""
together = st.builds(
    lambda size, balancer, rules: ServerKind(size[0], size[1], balancer, rules),
    sizes,
    st.sampled_from(BALANCERS),
    LOCK_STEP,
)
apart = st.builds(lambda size, balancer: ServerKind(size[0], size[1], balancer), sizes, st.sampled_from(BALANCERS))


class Servers(Fleet):
    """A fleet whose pools may be of servers of several engines."""

    def planned(self, number: int, start_up_s: float = 0.0) -> fleet_plan.Pool:
        planned, kind = super().planned(number, start_up_s), (self.prefill, self.decode)[number].server
        if kind is None:
            return planned
        rules = None if kind.rules is None else LockStepRules(**kind.rules)
        interval = rules.prefill_interval if rules else 1
        modes = replace(planned.modes, throttle_interval=interval if interval > 1 else 0)
        num_addresses = kind.num_engines // kind.per_address
        server = ServerPlan(kind.num_engines, rules, kind.balancer, num_addresses)
        return planned._replace(num_replicas=planned.num_replicas * kind.num_engines, modes=modes, server=server)


@st.composite
def servers(draw: st.DrawFn) -> Servers:
    """At least the decode pool has ranks that step together, or the prefill pool, or both have engines that do not."""
    fleet = draw(fleets())
    kinds = draw(st.sampled_from(((together, together), (st.none(), together), (together, st.none()), (apart, apart))))

    def of(pool: Pool, kind: st.SearchStrategy[Any]) -> Pool:
        return replace(pool, num_replicas=min(2, pool.num_replicas), server=draw(kind))

    return Servers(fleet.trace, of(fleet.prefill, kinds[0]), of(fleet.decode, kinds[1]), fleet.drafts, fleet.loras)


@examples(150)
@given(fleet=servers(), network=costs, least_uncached_tokens=st.sampled_from((1, 1, 6, 12)))
def test_requests_and_steps(fleet: Servers, network: NetworkCosts, least_uncached_tokens: int) -> None:
    """Who prefilled and who answered, every request's and every pull's times and bytes; every step, dummy and wave of ranks."""
    rows: list[dict[str, Any]] = []
    found = simulate(fleet, network, least_uncached_tokens, rows.append)
    expected = simulate_disaggregated(
        *fleet[:3], network, least_uncached_tokens=least_uncached_tokens, idle_sleep_s=POLLING_S
    )
    assert_same_handovers(found, expected, fleet.prefill.num_engines)
    assert [ranks.num_waves for ranks in found.ranks] == [ranks.num_waves for ranks in expected.ranks]
    steps = defaultdict(list)
    for row in rows:
        if "wave" in row:
            steps[row["replica"]].append((row["start"], row["end"], row["n"]))
    naive = [rank.ran for ranks in expected.ranks for rank in ranks.ranks if rank.ran]
    in_order = [sorted(steps[replica]) for replica in sorted(steps)]
    assert len(in_order) == len(naive)
    for ran, as_naive in zip(in_order, naive, strict=True):
        np.testing.assert_allclose(ran, as_naive, rtol=1e-9)


def test_a_dummy_batch_waits_for_the_batch_of_a_request_that_has_ended() -> None:
    """More drafts were accepted than was known as it was launched; only when it is back the rank's host drops the adapters that a dummy batch lacks."""
    trace = with_adapters(a_trace((0.0, 16, 7), (5.0, 32, 3)), ["one", ""])
    drafting, loras = Drafts(Speculation(2, "eagle3"), ((2,), (2,))), Loras(1, 1, 2.0, 1.0, 8.0)
    config = scheduler_config(async_scheduling=True, num_gpu_blocks=40)
    modes = (naive_speculation(drafting), naive_scripts(drafting, trace), loras)
    ranks = ServerKind(2, 2, BALANCERS[0], {"sync_interval": 1, "looks_at_once": True, "prefill_interval": 1})
    prefill, decode = (Pool(config, STEP, KV, 1, "round_robin", *modes, server=kind) for kind in (None, ranks))
    fleet, network = Servers(trace, prefill, decode, drafting, loras), NetworkCosts(2.0, 3.0, 0.0)
    found = simulate(fleet, network, least_uncached_tokens=17)
    expected = simulate_disaggregated(*fleet[:3], network, least_uncached_tokens=17, idle_sleep_s=POLLING_S)
    assert_same_handovers(found, expected, 1)
