"""A fleet with pools that prefill for others: its engines, which speak to each other over a network, and its gateway."""

from collections.abc import Sequence
from functools import partial

import simpy

from sim.cluster.deciders import decider
from sim.cluster.disaggregated_gateway import DisaggregatedGateway
from sim.cluster.engines import engine_core
from sim.cluster.fleet_plan import FleetPlan, RouterLike
from sim.cluster.handover_records import HandoverRecords
from sim.cluster.handovers import Handovers
from sim.cluster.network import Network
from sim.cluster.replica import Core, LiveReplica
from sim.cluster.routers.router import Fleet, Router
from sim.cluster.routers.table import router_for
from sim.engine.records import EngineRecords
from sim.engine.request_source import RequestSource
from sim.engine.request_table import RequestTable
from sim.engine.walking.core import WalkingCore
from sim.engine.walking.modes import POLLING_S, Modes
from sim.engine.walking.recorder import WalkRecorder
from sim.specs.kv_transfer import KVTransferConfig

NIXL = KVTransferConfig(kv_role="kv_both", reports_at_start=True)
"""As llm-d configures both sides. A worker looks for what has come right after it has launched a pass."""


class DisaggregatedFleet:
    """All replicas of a plan, live, behind `gateway`; an engine that transfers KV polls every `idle_sleep_s` while it waits."""

    def __init__(
        self,
        env: simpy.Environment,
        plan: FleetPlan,
        source: RequestSource,
        table: RequestTable,
        *,
        seed: int = 0,
        idle_sleep_s: float = POLLING_S,
    ) -> None:
        assert plan.disaggregation is not None, "a fleet that hands KV over"
        self._plan, self._source = plan, source
        self._fleet = Fleet([plan.configs[pool] for pool in plan.pool_of], source, seed)
        self._table, self._prefills = table, RequestTable(source)
        self._network = Network(env, plan.disaggregation.costs)
        kvs = [plan.pools[pool].kv for pool in plan.pool_of]
        for kv in kvs:
            self._network.add(kv.num_gpus)
        self._handovers = Handovers(self._network, kvs, len(source))
        self._modes = Modes(kv_transfer=NIXL, peer=self._handovers, idle_sleep_s=idle_sleep_s)
        self.gateway = DisaggregatedGateway(
            env,
            self._router(plan.router, is_prefill=False),
            source,
            prefill_router=self._router(plan.disaggregation.router or plan.router, is_prefill=True),
            decider=decider(plan.disaggregation.decider),
            handovers=self._handovers,
            pools=plan.pools,
        )
        self._cores = [self._core(number, pool, env.now) for number, pool in enumerate(plan.pool_of)]
        replicas = [self._replica(env, number, pool) for number, pool in enumerate(plan.pool_of)]
        self.gateway.connect(replicas)
        self._handovers.connect(replicas)

    def _router(self, given: RouterLike, *, is_prefill: bool) -> Router:
        """Of the replicas that prefill for others, or of those that answer."""
        plan = self._plan
        num_candidates = sum(pool.num_replicas for pool in plan.pools if (pool.role == "prefill") == is_prefill)
        return router_for(given, self._fleet, num_candidates)

    def _core(self, number: int, pool_number: int, start_s: float) -> Core:
        pool, num_keys = self._plan.pools[pool_number], self._source.num_keys(pool_number)
        if pool.role == "both":
            return engine_core(pool, self._table, number, start_s=start_s, num_keys=num_keys)
        walk_recorder = WalkRecorder(self._prefills if pool.role == "prefill" else self._table, number)
        return WalkingCore(
            pool.config, pool.step_time, walk_recorder, start_s=start_s, modes=self._modes, num_keys=num_keys
        )

    def _replica(self, env: simpy.Environment, number: int, pool: int) -> LiveReplica:
        gateway = self.gateway
        is_prefill = self._plan.pools[pool].role == "prefill"
        listener = partial(gateway.prefilled if is_prefill else gateway.answered, number)
        router = gateway.prefill_router if is_prefill else gateway.router
        return LiveReplica(env, self._cores[number], number, pool, listener, router.scrape_interval_s)

    def records(self) -> Sequence[EngineRecords]:
        """Of each replica, by number; to be asked for once."""
        return [core.records() for core in self._cores]

    def handovers(self) -> HandoverRecords:
        """What was handed over; to be asked for after `records`."""
        return HandoverRecords.of(self._prefills, self._handovers.table, self._network.ports)
