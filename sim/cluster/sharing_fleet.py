"""A fleet whose replicas, all alike, share KV: its engines, what they share, and its gateway."""

from dataclasses import replace
from functools import partial

import simpy

from sim.cluster.engines import StepLog, engine_core, of_replica
from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.replica import LiveReplica
from sim.cluster.routers.router import Fleet
from sim.cluster.routers.table import router_for
from sim.cluster.shared_records import SharedRecords
from sim.engine.records import EngineRecords
from sim.engine.request_source import RequestSource
from sim.engine.request_table import RequestTable
from sim.engine.walking.modes import POLLING_S


class SharingFleet:
    """All replicas of a plan, live, behind `gateway`; an engine polls every `idle_sleep_s` while it waits for KV."""

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
        assert plan.sharing is not None, "a fleet that shares KV"
        (pool,) = plan.pools
        config, numbers = pool.config, range(pool.num_replicas)
        self._shared = plan.sharing.over(env, pool.kv, config.block_size, pool.num_replicas, len(source))
        router = router_for(plan.router, Fleet([config] * pool.num_replicas, source, seed), pool.num_replicas)
        self.gateway = self._shared.gateway(env, router, source)
        modes = replace(pool.modes, idle_sleep_s=idle_sleep_s)
        self._cores = [
            engine_core(
                pool._replace(modes=self._shared.modes_of(modes, number)),
                table,
                number,
                start_s=env.now,
                num_keys=source.num_keys(),
                step_log=of_replica(step_log, number),
            )
            for number in numbers
        ]
        replicas = [
            LiveReplica(env, core, number, 0, partial(self.gateway.answered, number), router.scrape_interval_s)
            for number, core in zip(numbers, self._cores, strict=True)
        ]
        self.gateway.replicas = replicas
        self._shared.connect(replicas)

    def records(self) -> list[EngineRecords]:
        """Of each replica, by number; to be asked for once."""
        return [core.records() for core in self._cores]

    def shared(self) -> SharedRecords:
        """What came of sharing; to be asked for after `records`."""
        return self._shared.records()
