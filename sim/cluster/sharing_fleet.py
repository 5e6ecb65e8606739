"""A fleet whose replicas share KV: its engines, what they share, and its gateway."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import simpy

from sim.cluster.engines import StepLog, engine_core, of_replica
from sim.cluster.fleet_plan import FleetPlan, Pool
from sim.cluster.gateway import Gateway
from sim.cluster.lock_step import RankCore
from sim.cluster.network import Network
from sim.cluster.parallel_sampling import ParallelSampling
from sim.cluster.replica import LiveReplica, Replica
from sim.cluster.routers.router import Fleet, Router
from sim.cluster.routers.table import router_for, router_options
from sim.cluster.shared_records import SharedRecords
from sim.cluster.sharing import Shared
from sim.engine.records import EngineRecords
from sim.engine.request import Request
from sim.engine.request_source import RequestSource
from sim.engine.request_table import RequestTable
from sim.engine.walking.modes import POLLING_S


class SharingGateway(Gateway):
    """Tells what is shared of each request that it sends."""

    def __init__(
        self, env: simpy.Environment, router: Router, source: RequestSource, shared: Shared, *, one_by_one: bool
    ) -> None:
        """Of a server whose engines are the replicas, answers of one request go `one_by_one`."""
        fit = source.fit if source.other_keys else None
        sampling = ParallelSampling.of(source, one_by_one=one_by_one)
        super().__init__(env, router, unable=source.unable, fit=fit, sampling=sampling)
        self._shared = shared

    def send(self, chosen: Replica, *answers: Request) -> None:
        self._shared.sent(answers[0], chosen, self.replicas)
        super().send(chosen, *answers)


def begun_sharing(env: simpy.Environment, plan: FleetPlan, pool_of: Sequence[int], source: RequestSource) -> Shared:
    """What replicas of these pools share, over a network of their own."""
    assert plan.sharing is not None, "a fleet that shares KV"
    kvs = [plan.pools[pool].kv for pool in pool_of]
    network = Network(env, plan.sharing.costs, [kv.num_gpus for kv in kvs])
    return plan.sharing.over(network, kvs, plan.configs[0].block_size, len(source))


def sharing_core(
    pool: Pool,
    shared: Shared,
    table: RequestTable,
    number: int,
    *,
    start_s: float,
    num_keys: int,
    idle_sleep_s: float,
    step_log: StepLog | None = None,
) -> RankCore:
    """The engine of a replica of that number, which polls every `idle_sleep_s` while it waits for KV."""
    modes = shared.modes_of(replace(pool.modes, idle_sleep_s=idle_sleep_s), number, pool.role)
    return engine_core(pool._replace(modes=modes), table, number, start_s=start_s, num_keys=num_keys, step_log=step_log)


class SharingFleet:
    """All replicas of a plan, live, behind `gateway`."""

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
        pools = [plan.pools[number] for number in plan.pool_of]
        self._shared = begun_sharing(env, plan, plan.pool_of, source)
        router = router_for(plan.router, Fleet([pool.config for pool in pools], source, seed), len(pools))
        is_one_server = router_options(plan.router).is_of_one_server
        self.gateway = SharingGateway(env, router, source, self._shared, one_by_one=is_one_server)
        self._cores = [
            sharing_core(
                pool,
                self._shared,
                table,
                number,
                start_s=env.now,
                num_keys=source.num_keys(plan.pool_of[number]),
                idle_sleep_s=idle_sleep_s,
                step_log=of_replica(step_log, number),
            )
            for number, pool in enumerate(pools)
        ]
        replicas = [
            LiveReplica(
                env,
                core,
                number,
                plan.pool_of[number],
                partial(self.gateway.answered, number),
                router.scrape_interval_s,
            )
            for number, core in enumerate(self._cores)
        ]
        self.gateway.replicas = replicas
        self._shared.engines = dict(enumerate(replicas))

    def records(self) -> list[EngineRecords]:
        """Of each replica, by number; to be asked for once."""
        return [core.records() for core in self._cores]

    def shared(self) -> SharedRecords:
        """What came of sharing; to be asked for after `records`."""
        return self._shared.records()
