"""Pools that hand KV over do what naive ones do."""

from dataclasses import astuple, replace
from typing import NamedTuple

import numpy as np
import simpy
from hypothesis import assume, given
from hypothesis import strategies as st

from sim.cluster import fleet_plan
from sim.cluster.arrivals import arrivals
from sim.cluster.disaggregated_fleet import DisaggregatedFleet
from sim.cluster.engine_role import Role
from sim.cluster.engines import StepLog
from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.kv_store import StoreSharing
from sim.cluster.network import NetworkCosts
from sim.cluster.records import ClusterRecords
from sim.engine.request_table import RequestTable
from sim.memory.kv_cache import KVGroup
from sim.memory.transfers import ReplicaKV
from sim.specs.kv_transfer import OffloadConfig
from sim.specs.lora import LoraSlots
from sim.workload.trace import Trace
from tests.cluster.drafts import LEAST_SPARE_BLOCKS, Drafts, drafts, modes_of, naive_scripts, naive_speculation
from tests.cluster.tiers import tiers
from tests.engine.test_engines_agree import Telling
from tests.engine.test_modes_agree import LORAS, with_adapters
from tests.properties import engine_examples as examples
from tests.reference.cluster import cpu_of
from tests.reference.disaggregation import Disaggregated, Pool, simulate_disaggregated
from tests.reference.modes import Loras
from tests.workloads import configs, step_times, tight_config, traces

POLLING_S = 2.0
ROLES: tuple[Role, ...] = ("prefill", "decode")
costs = st.builds(
    NetworkCosts,
    bytes_per_s=st.integers(1, 20),
    latency_s=st.integers(0, 9),
    descriptor_s=st.integers(0, 3),
    handshake_s=st.sampled_from((0, 0, 25)),
)


class Fleet(NamedTuple):
    """A trace, the pool that prefills and the pool that decodes, each with a CPU tier or none; both draft alike, if they do, and have the same slots for adapters."""

    trace: Trace
    prefill: Pool
    decode: Pool
    drafts: Drafts | None = None
    loras: Loras | None = None
    tiers: tuple[OffloadConfig | None, OffloadConfig | None] = (None, None)

    def planned(self, number: int, start_up_s: float = 0.0) -> fleet_plan.Pool:
        """Its pool of that number as the product has it."""
        pool, role = (self.prefill, self.decode)[number], ROLES[number]
        lora = LoraSlots(*astuple(self.loras)) if self.loras else None
        modes = replace(modes_of(self.drafts), lora=lora, offload=self.tiers[number])
        return fleet_plan.Pool(
            pool.config, pool.step_time, pool.num_replicas, start_up_s, role=role, kv=pool.kv, modes=modes
        )


@st.composite
def fleets(draw: st.DrawFn, *, with_tiers: bool = False) -> Fleet:
    """With hardly more blocks than the largest request needs, or, where layers have windows, blocks for everybody at once."""
    trace = draw(traces())
    drafting, loras = draw(st.none() | drafts(trace)), draw(st.none() | LORAS)
    if loras:
        names = draw(st.lists(st.sampled_from(("", "one", "two", "three")), min_size=len(trace), max_size=len(trace)))
        trace = with_adapters(trace, names)
    pools, cpus = [], []
    for _ in range(2):
        if drafting:
            config = tight_config(draw, trace, least_spare=LEAST_SPARE_BLOCKS, enable_prefix_caching=st.booleans())
            assume(drafting.starts_with(config))
        else:
            config = draw(configs(trace, versions=("0.33.0", "0.32.0")))
        kv = ReplicaKV((KVGroup("full", None, 1, config.block_size, 8),), draw(st.integers(1, 4)))
        router = draw(st.sampled_from(("round_robin", "least_loaded", "random", "power_of_two")))
        modes = (naive_speculation(drafting), naive_scripts(drafting, trace), loras)
        keeps = config.engine.enable_prefix_caching
        has_tier = (
            with_tiers and keeps and config.block_size > 1
        )  # where a prompt is one block, vLLM loads it again and again
        cpus.append(draw(st.none() | tiers) if has_tier else None)
        pool = Pool(config, Telling(draw(step_times)), kv, draw(st.integers(1, 3)), router, *modes)
        pools.append(replace(pool, offload=cpu_of(cpus[-1]) if cpus[-1] else None))
    return Fleet(trace, pools[0], pools[1], drafting, loras, (cpus[0], cpus[1]))


def simulate(
    fleet: Fleet,
    network: NetworkCosts,
    least_uncached_tokens: int,
    step_log: StepLog | None = None,
    sharing: StoreSharing | None = None,
) -> ClusterRecords:
    """With engines that poll as seldom as the naive ones here."""
    trace, prefill, decode = fleet[:3]
    decider = f"prefix_based:non_cached_tokens={least_uncached_tokens}"
    plan = FleetPlan(
        (fleet.planned(0), fleet.planned(1)),
        decode.router,
        disaggregation=fleet_plan.Disaggregation(network, decider, prefill.router),
        sharing=sharing,
    )
    source = plan.source(trace)
    table = RequestTable(source)
    env = simpy.Environment(initial_time=min(0.0, float(trace.arrival_s[0])))
    found = DisaggregatedFleet(env, plan, source, table, idle_sleep_s=POLLING_S, step_log=step_log)
    env.process(arrivals(env, source, found.gateway.submit))
    env.run()
    handed = found.handovers
    return ClusterRecords.of(
        found.servers.records(),
        table,
        plan.pool_of,
        handovers=handed(),
        shared=found.shared(),
        ranks=found.servers.ranks,
    )


@examples(60)
@given(fleet=fleets(with_tiers=True), network=costs, least_uncached_tokens=st.sampled_from((1, 1, 6, 12)))
def test_requests_of_a_trace(fleet: Fleet, network: NetworkCosts, least_uncached_tokens: int) -> None:
    """Who prefilled and who answered, every request's times, every pull's times and bytes."""
    found = simulate(fleet, network, least_uncached_tokens)
    expected = simulate_disaggregated(
        *fleet[:3], network, least_uncached_tokens=least_uncached_tokens, idle_sleep_s=POLLING_S
    )
    assert_same_handovers(found, expected, fleet.prefill.num_engines)


def assert_same_handovers(found: ClusterRecords, expected: Disaggregated, num_prefill_engines: int) -> None:
    """Of all requests: their times, who served them, and what became of their KV."""
    requests, handovers = found.merged.requests, found.handovers
    assert handovers is not None
    assert requests.rejected == {row: r.rejected for row, r in enumerate(expected.requests) if r.rejected}
    for name in ("first_token_s", "finish_s"):
        times_s = [np.nan if value is None else value for value in (getattr(r, name) for r in expected.requests)]
        np.testing.assert_allclose(getattr(requests, name), times_s, rtol=1e-9, err_msg=name)
    for row, engine in expected.engine.items():
        assert found.replica[row] == engine + num_prefill_engines
    pulls = {row: pull for row, pull in expected.pulls.items() if pull.num_bytes}  # of others all was there
    assert np.flatnonzero(handovers.are_handed_over).tolist() == sorted(pulls)
    for row, pull in pulls.items():
        assert handovers.prefill_replica[row] == pull.prefill_engine
        assert handovers.pulled_bytes[row] == pull.num_bytes
        times_s = [handovers.prefill_end_s[row], handovers.pull_start_s[row], handovers.pull_end_s[row]]
        np.testing.assert_allclose(times_s, [pull.prefill_end_s, pull.start_s, pull.end_s], rtol=1e-9)
