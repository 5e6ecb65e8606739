"""Fleets that change and whose replicas share KV do what naive ones do: what is in a store outlives who stored it, and pulls fail with their sources."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple
from unittest.mock import patch

import simpy
from hypothesis import assume, given
from hypothesis import strategies as st

from sim.cluster import fleet_plan
from sim.cluster.changing_sharing import ChangingSharingFleet
from sim.cluster.clients import Clients
from sim.cluster.dynamics import Dynamics
from sim.cluster.faults import parse_faults
from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.kv_pulls import PullSharing
from sim.cluster.kv_store import StoreOptions, StoreSharing
from sim.cluster.records import ClusterRecords
from sim.cluster.shared_records import PullRecords, StoreRecords
from sim.cluster.sharing import Sharing
from sim.cluster.simulation import simulate
from sim.cluster.users import Users
from sim.engine.config import SchedulerConfig
from sim.engine.walking import vain_calls
from sim.engine.walking.modes import PLAIN
from sim.memory.kv_cache import KVGroup
from sim.memory.transfers import ReplicaKV
from sim.specs.kv_transfer import LoadFailurePolicy, OffloadConfig
from sim.workload.trace import Trace
from tests.cluster.sharing import POLLING_S, workloads
from tests.cluster.test_changes_agree import assert_all_ended_once, assert_same_run, policies
from tests.cluster.test_pulls_agree import sharings
from tests.cluster.test_ranks_beside import revisits
from tests.cluster.test_store_agrees import BYTES_PER_TOKEN, CARD_BYTES_PER_S, most_blocks, stores
from tests.cluster.tiers import tiers
from tests.engine.test_engines_agree import Telling
from tests.properties import engine_examples as examples
from tests.reference import kv_pulls, kv_store
from tests.reference.cluster import cpu_of
from tests.reference.managed import Pool, ServedChanging, simulate_changing
from tests.reference.managed_sharing import Make, ManagedPulls, ManagedSharing, ManagedStore
from tests.reference.modes import Modes, Offload, Transfers
from tests.workloads import step_times

routers = st.sampled_from(("least_loaded", "random", "round_robin", "round_robin", "power_of_two"))
users = st.sampled_from((None, None, Users(3, 1.0), Users(3)))
losses = st.builds(
    lambda at_s, replica, for_s: {"at_s": at_s, "replica": replica, "for_s": for_s},
    st.integers(0, 150),
    st.sampled_from((0, 0, 1)),
    st.sampled_from((0, 3, 40)),
)


class Run(NamedTuple):
    """One or two pools of other speed and start-up, what befalls them, and what is asked of them how."""

    trace: Trace
    config: SchedulerConfig
    pools: list[Pool]
    changes: Dynamics
    router: str
    clients: Clients

    def simulated(self, sharing: Sharing, kv: ReplicaKV, tier: OffloadConfig | None = None) -> ClusterRecords:
        """With engines that poll as seldom as the naive ones."""
        modes = replace(PLAIN, offload=tier)
        pools = tuple(fleet_plan.Pool(self.config, *pool, kv=kv, modes=modes) for pool in self.pools)
        plan = FleetPlan(pools, self.router, self.changes, sharing=sharing)
        with (
            patch.object(ChangingSharingFleet, "idle_sleep_s", POLLING_S),
            patch.object(vain_calls, "MOST_VAIN_LOADS", 100),
        ):
            return simulate(self.trace, plan, clients=self.clients)

    def naive(self, kind: Callable[..., ManagedSharing], make: Make, transfers: Transfers) -> ServedChanging:
        return simulate_changing(
            self.trace,
            self.config,
            self.pools,
            router=self.router,
            dynamics=self.changes,
            clients=self.clients,
            modes=Modes(self.config.num_batches_in_flight, transfers=transfers, idle_sleep_s=POLLING_S),
            kind=partial(kind, make=make),
        )


@st.composite
def runs(draw: st.DrawFn, *, with_windows: bool = False) -> Run:
    """Prompts that begin alike, of which few replicas are asked while some of these are lost."""
    if draw(st.integers(0, 3)):
        trace, config = draw(revisits(with_windows=with_windows))
        trace = replace(trace, arrival_s=trace.arrival_s * draw(st.sampled_from((0.25, 1, 1, 20))))
    else:
        trace, config, drafts = draw(workloads(with_windows=with_windows))
        assume(drafts is None)
    assume(config.engine.enable_prefix_caching)
    starts = st.sampled_from((0.0, 3.0, 20.0))
    pools = st.builds(lambda model, *rest: Pool(Telling(model), *rest), step_times, st.integers(1, 2), starts)
    asked = draw(st.lists(pools, min_size=1, max_size=2))
    changes = draw(policies(len(asked)))
    if draw(st.integers(0, 3)):
        changes = replace(changes, faults=(*changes.faults, *parse_faults(draw(st.lists(losses, max_size=4)))))
    return Run(trace, config, asked, changes, draw(routers), Clients(draw(users)))


@examples(150)
@given(run=runs(with_windows=True), store=stores(), tier=st.none() | st.none() | tiers)
def test_a_store_in_a_fleet_that_changes(run: Run, store: tuple[int, StoreOptions], tier: OffloadConfig | None) -> None:
    """Every request's end, every replica's life, steps and caches, also of replicas that have a CPU tier each."""
    chunk_blocks, given_options = store
    block_size = run.config.block_size
    assume(block_size > 1)  # where a prompt is one block, it is loaded again and again
    options = replace(given_options, chunk_tokens=most_blocks(run.config, chunk_blocks) * block_size)
    kv = ReplicaKV((KVGroup("full", None, 1, block_size, BYTES_PER_TOKEN * block_size // 2),), 1)
    sharing = StoreSharing(options, CARD_BYTES_PER_S)

    def make(env: simpy.Environment, num_replicas: int) -> kv_store.Cluster:
        return kv_store.Cluster(env, run.config, sharing, kv, num_replicas)

    class Beside(ManagedStore):
        offload: Offload | None = cpu_of(tier) if tier else None

    found = run.simulated(sharing, kv, tier)
    assert_same_run(found, run.naive(Beside, make, Transfers("store", reports_at_start=True)))
    assert_all_ended_once(found)
    assert isinstance(found.shared, StoreRecords)
    assert found.shared.most_chunks <= found.shared.num_chunks


@examples(150)
@given(
    run=runs(with_windows=True),
    sharing=sharings,
    policy=st.sampled_from(("fail", "recompute")),
    tier=st.none() | st.none() | tiers,
)
def test_pulls_in_a_fleet_that_changes(
    run: Run, sharing: PullSharing, policy: LoadFailurePolicy, tier: OffloadConfig | None
) -> None:
    """The same, and who pulled what from whom.

    A naive cache has what an attempt before left there, the product's only what others share: who is tried again is not sent to the lost.
    """
    assume(tier is None or run.config.block_size > 1)
    kv = ReplicaKV((KVGroup("full", None, 1, run.config.block_size, 8),), 1)
    how, changes = replace(sharing, kv_load_failure_policy=policy), run.changes
    if changes.recovery.lost != "fail":
        run = run._replace(changes=replace(changes, recovery=replace(changes.recovery, probe_interval_s=0.0)))
    clusters: list[kv_pulls.Cluster] = []

    def make(env: simpy.Environment, num_replicas: int) -> kv_pulls.Cluster:
        clusters.append(kv_pulls.Cluster(env, how, kv, num_replicas))
        return clusters[-1]

    class Beside(ManagedPulls):
        offload: Offload | None = cpu_of(tier) if tier else None

    found = run.simulated(how, kv, tier)
    transfers = Transfers("nixl", "kv_consumer", reports_at_start=True, recomputes_failed=policy == "recompute")
    assert_same_run(found, run.naive(Beside, make, transfers))
    assert_all_ended_once(found)
    assert isinstance(found.shared, PullRecords)
    pulls = {row: clusters[0].pulls.get(request) for row, request in clusters[0].latest.items()}
    pulled = {row: pull.source for row, pull in pulls.items() if pull and pull.has_arrived}
    assert dict(enumerate(found.shared.source.tolist())) == {row: pulled.get(row, -1) for row in range(len(run.trace))}
