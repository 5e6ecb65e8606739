"""Fleets whose replicas share KV, on whole seconds."""

from typing import NamedTuple

import simpy
from hypothesis import assume
from hypothesis import strategies as st

from sim.cluster.arrivals import arrivals
from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.records import ClusterRecords
from sim.cluster.sharing_fleet import SharingFleet
from sim.engine.config import SchedulerConfig
from sim.engine.request_table import RequestTable
from sim.workload.trace import Trace
from tests.cluster.drafts import LEAST_SPARE_BLOCKS, Drafts, drafts
from tests.workloads import tight_config, traces, with_groups

POLLING_S = 2.0
ROUTERS = (
    "round_robin",
    "least_loaded",
    "llm_d:scrape_interval_s=7,lru_blocks=3",
    "llm_d_precise:queue=0,kv=0",
    "random",
    "vllm_dp:interval_s=7",
)


class Workload(NamedTuple):
    """A trace, how replicas schedule, and how they draft, if they do."""

    trace: Trace
    config: SchedulerConfig
    drafts: Drafts | None


@st.composite
def workloads(draw: st.DrawFn, *, with_windows: bool = False) -> Workload:
    """Few blocks on the GPU, so that what was there is often elsewhere alone."""
    trace = draw(traces())
    given = draw(st.none() | drafts(trace))
    spare = LEAST_SPARE_BLOCKS if given else 4
    config = tight_config(draw, trace, least_spare=spare, scheduler_reserve_full_isl=st.booleans())
    assume(given is None or given.starts_with(config))
    if given is None and with_windows:
        config = draw(with_groups(config))
    return Workload(trace, config, given)


def served(trace: Trace, plan: FleetPlan, idle_sleep_s: float = POLLING_S) -> ClusterRecords:
    """With engines that poll as seldom as the naive ones here, or so."""
    source = plan.source(trace)
    table = RequestTable(source)
    env = simpy.Environment(initial_time=min(0.0, float(trace.arrival_s[0])))
    fleet = SharingFleet(env, plan, source, table, idle_sleep_s=idle_sleep_s)
    env.process(arrivals(env, source, fleet.gateway.submit))
    env.run()
    return ClusterRecords.of(fleet.records(), table, plan.pool_of, shared=fleet.shared())
