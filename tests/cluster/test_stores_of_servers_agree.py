"""Servers of several engines that share a store of KV do what naive ones do, whether the engines step together or not."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import simpy
from hypothesis import assume, event, given
from hypothesis import strategies as st

from sim.cluster.arrivals import arrivals
from sim.cluster.fleet_plan import FleetPlan, Pool, ServerPlan
from sim.cluster.kv_store import StoreOptions, StoreSharing
from sim.cluster.records import ClusterRecords
from sim.cluster.sharing_servers import SharingServerFleet
from sim.engine.request_table import RequestTable
from sim.engine.walking import vain_calls
from sim.errors import ConfigError
from sim.memory.kv_cache import KVGroup
from sim.memory.transfers import ReplicaKV
from sim.workload.trace import Trace
from tests.cluster.drafts import modes_of, naive_scripts, naive_speculation
from tests.cluster.sharing import POLLING_S, Workload, workloads
from tests.cluster.test_clusters_agree import assert_same_run
from tests.cluster.test_servers_agree import balancers, layouts, stepping_together
from tests.cluster.test_store_agrees import BYTES_PER_TOKEN, CARD_BYTES_PER_S, options_for, revisited, stores
from tests.conformance.case import RecordedStepTime
from tests.properties import engine_examples as examples
from tests.reference import kv_store
from tests.reference.modes import Modes, Transfers
from tests.reference.servers import simulate_servers
from tests.workloads import step_times

ROUTERS = ("round_robin", "least_loaded", "llm_d:scrape_interval_s=7,lru_blocks=3", "llm_d_precise:queue=0,kv=0")


@examples(150)
@given(
    workload=revisited() | workloads(with_windows=True),
    store=stores(),
    step_time=step_times,
    num_servers=st.integers(1, 2),
    layout=layouts,
    router=st.sampled_from(ROUTERS),
    balancer=balancers,
    looks=st.sampled_from([None, (1, True), (3, False), (3, True), (16, False), (16, True)]),
)
def test_servers_that_share_a_store(
    workload: Workload,
    store: tuple[int, StoreOptions],
    step_time: RecordedStepTime,
    num_servers: int,
    layout: tuple[int, int],
    router: str,
    *,
    balancer: str,
    looks: tuple[int, bool] | None,
) -> None:
    """Who serves whom, every step and time, dummy and wave; `looks` None for engines that know nothing of each other."""
    trace, config, given = workload
    sharing = StoreSharing(options_for(config, store), CARD_BYTES_PER_S)
    kv = ReplicaKV((KVGroup("full", None, 1, config.block_size, BYTES_PER_TOKEN * config.block_size // 2),), 1)
    timed, lock_step, rules = stepping_together(step_time, None, looks or (16, True))
    size, num_addresses = layout
    server = ServerPlan(size, lock_step if looks else None, balancer, num_addresses)
    pool = Pool(config, timed, num_servers * size, kv=kv, modes=modes_of(given), server=server)
    found = served(trace, FleetPlan((pool,), router, sharing=sharing))

    def connectors(env: simpy.Environment) -> Callable[[Any, int], kv_store.Stored]:
        cluster = kv_store.Cluster(env, config, sharing, kv, num_servers * size)
        return lambda engine, number: kv_store.Stored(cluster, number, engine.scheduler.kv, config)

    ran = simulate_servers(
        trace,
        config,
        timed,
        num_servers=num_servers,
        num_engines=size,
        per_address=size // num_addresses,
        router=router,
        balancer=balancer,
        in_lock_step=looks is not None,
        modes=Modes(
            config.num_batches_in_flight,
            naive_speculation(given),
            transfers=Transfers("store", reports_at_start=True),
            idle_sleep_s=POLLING_S,
        ),
        scripts=naive_scripts(given, trace),
        connectors=connectors,
        **rules,
    )
    assert_same_run(found, ran.served)
    assert [(ranks.dummy_steps, ranks.num_waves) for ranks in found.ranks] == [
        (ranks.num_dummies, ranks.num_waves) for ranks in ran.ranks
    ]
    stored = found.merged.stored
    assert stored is not None
    assert np.all(stored.loaded_tokens > 0)
    event(f"together: {looks is not None}, from the store: {len(stored.loaded_rows) > 0}")


def served(trace: Trace, plan: FleetPlan) -> ClusterRecords:
    """With engines that poll as seldom as the naive ones."""
    source = plan.source(trace)
    table = RequestTable(source)
    env = simpy.Environment(initial_time=min(0.0, float(trace.arrival_s[0])))
    fleet = SharingServerFleet(env, plan, source, table, idle_sleep_s=POLLING_S)
    env.process(arrivals(env, source, fleet.gateway.submit))
    try:
        with patch.object(vain_calls, "MOST_VAIN_LOADS", 100):
            env.run()
            records = fleet.servers.records()
    except ConfigError as error:  # the naive engines would go on for ever, as vLLM
        assume("came to nothing" not in str(error))
        raise
    shared, ranks = fleet.shared(), fleet.servers.ranks
    return ClusterRecords.of(records, table, plan.pool_of, shared=shared, ranks=ranks, server_of=plan.server_of)
