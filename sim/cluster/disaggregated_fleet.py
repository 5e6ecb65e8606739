"""A fleet with pools that prefill for others: its servers, whose engines speak to each other over a network, and its gateway."""

from functools import partial

import simpy

from sim.cluster.disaggregated_gateway import DisaggregatedGateway
from sim.cluster.engines import StepLog
from sim.cluster.fleet_plan import FleetPlan, Pool, RouterLike
from sim.cluster.handover_records import HandoverRecords
from sim.cluster.lock_step import RankCore
from sim.cluster.prefill_desk import open_desk
from sim.cluster.routers.router import Fleet, Router
from sim.cluster.routers.table import router_for
from sim.cluster.servers import Front, Servers
from sim.cluster.shared_records import SharedRecords
from sim.engine.request_source import RequestSource
from sim.engine.request_table import RequestTable
from sim.engine.walking.modes import POLLING_S


class DisaggregatedFleet:
    """All servers of a plan, live, behind `gateway`; an engine that transfers KV polls every `idle_sleep_s` while it waits."""

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
        self._env, self._plan, self._source, self._table = env, plan, source, table
        self._fleet = Fleet([plan.configs[pool] for pool in plan.address_pools], source, seed)
        prefills = partial(self._router, is_prefill=True)
        self._exchange, desk = open_desk(env, plan, plan.pool_of, prefills, source, idle_sleep_s)
        router = self._router(plan.router, is_prefill=False)
        self.gateway = DisaggregatedGateway(env, router, source, table, desk, self._exchange.handovers)
        self.servers = Servers(env, plan, source, self._core, self._front, is_live=True, step_log=step_log)
        self.gateway.connect(self.servers.addresses)
        for number, engine in enumerate(self.servers.live_engines):
            self._exchange.connect(number, engine)

    def _router(self, given: RouterLike, *, is_prefill: bool) -> Router:
        """Of the addresses that prefill for others, or of those that answer."""
        roles = [self._plan.pools[pool].role for pool in self._plan.address_pools]
        return router_for(given, self._fleet, sum((role == "prefill") == is_prefill for role in roles))

    def _core(self, pool: int, number: int, step_log: StepLog | None) -> RankCore:
        num_keys = self._source.num_keys(pool)
        return self._exchange.core(
            self._plan.pools[pool], self._table, number, start_s=self._env.now, num_keys=num_keys, step_log=step_log
        )

    def _front(self, pool: Pool) -> Front:
        gateway = self.gateway
        if pool.role == "prefill":
            return Front(gateway.desk.router.scrape_interval_s, gateway.prefilled, gateway.refused)
        return Front(gateway.router.scrape_interval_s, gateway.answered, gateway.refused)

    def handovers(self) -> HandoverRecords:
        """What was handed over; to be asked for after the records of all engines."""
        return self._exchange.records()

    def shared(self) -> SharedRecords | None:
        """What came of a store, if there is one; to be asked for likewise."""
        return self._exchange.shared()
