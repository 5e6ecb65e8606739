"""A fleet with pools that prefill for others: its engines, which speak to each other over a network, and its gateway."""

from collections.abc import Sequence
from functools import partial

import simpy

from sim.cluster.disaggregated_gateway import DisaggregatedGateway
from sim.cluster.engines import StepLog, of_replica
from sim.cluster.fleet_plan import FleetPlan, RouterLike
from sim.cluster.handover_records import HandoverRecords
from sim.cluster.prefill_desk import open_desk
from sim.cluster.replica import Core, LiveReplica
from sim.cluster.routers.router import Fleet, Router
from sim.cluster.routers.table import router_for
from sim.engine.records import EngineRecords
from sim.engine.request_source import RequestSource
from sim.engine.request_table import RequestTable
from sim.engine.walking.modes import POLLING_S


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
        step_log: StepLog | None = None,
    ) -> None:
        self._step_log = step_log
        self._plan, self._source, self._table = plan, source, table
        self._fleet = Fleet([plan.configs[pool] for pool in plan.pool_of], source, seed)
        prefills = partial(self._router, is_prefill=True)
        self._exchange, desk = open_desk(env, plan, plan.pool_of, prefills, source, idle_sleep_s)
        router = self._router(plan.router, is_prefill=False)
        self.gateway = DisaggregatedGateway(env, router, source, table, desk, self._exchange.handovers)
        self._cores = [self._core(number, pool, env.now) for number, pool in enumerate(plan.pool_of)]
        self.gateway.connect([self._replica(env, number, pool) for number, pool in enumerate(plan.pool_of)])

    def _router(self, given: RouterLike, *, is_prefill: bool) -> Router:
        """Of the replicas that prefill for others, or of those that answer."""
        plan = self._plan
        num_candidates = sum(pool.num_replicas for pool in plan.pools if (pool.role == "prefill") == is_prefill)
        return router_for(given, self._fleet, num_candidates)

    def _core(self, number: int, pool: int, start_s: float) -> Core:
        num_keys = self._source.num_keys(pool)
        return self._exchange.core(
            self._plan.pools[pool],
            self._table,
            number,
            start_s=start_s,
            num_keys=num_keys,
            step_log=of_replica(self._step_log, number),
        )

    def _replica(self, env: simpy.Environment, number: int, pool: int) -> LiveReplica:
        gateway = self.gateway
        is_prefill = self._plan.pools[pool].role == "prefill"
        listener = partial(gateway.prefilled if is_prefill else gateway.answered, number)
        router = gateway.desk.router if is_prefill else gateway.router
        return LiveReplica(env, self._cores[number], number, pool, listener, router.scrape_interval_s)

    def records(self) -> Sequence[EngineRecords]:
        """Of each replica, by number; to be asked for once."""
        return [core.records() for core in self._cores]

    def handovers(self) -> HandoverRecords:
        """What was handed over; to be asked for after `records`."""
        return self._exchange.records()
