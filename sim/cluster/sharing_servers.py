"""Servers of several engines, all of which share a store of KV."""

import simpy

from sim.cluster.engines import StepLog
from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.lock_step import RankCore
from sim.cluster.servers import ServerFleet
from sim.cluster.shared_records import SharedRecords
from sim.cluster.sharing_fleet import begun_sharing, sharing_core
from sim.engine.request_source import RequestSource
from sim.engine.request_table import RequestTable
from sim.engine.walking.modes import POLLING_S


class SharingServerFleet(ServerFleet):
    """Live, since what one stores the others find."""

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
        self._shared = begun_sharing(env, plan, plan.pool_of, source)
        self._idle_sleep_s = idle_sleep_s
        super().__init__(env, plan, source, table, seed=seed, is_live=True, step_log=step_log)
        self._shared.engines = dict(enumerate(self.servers.live_engines))

    def _core(self, pool: int, number: int, step_log: StepLog | None) -> RankCore:
        return sharing_core(
            self._plan.pools[pool],
            self._shared,
            self._table,
            number,
            start_s=self._env.now,
            num_keys=self._source.num_keys(pool),
            idle_sleep_s=self._idle_sleep_s,
            step_log=step_log,
        )

    def shared(self) -> SharedRecords:
        """What came of sharing; to be asked for after the records of all engines."""
        return self._shared.records()
