"""A run of a fleet that changes: its replicas come and go, and its gateway keeps, aborts and retries requests."""

from collections.abc import Mapping
from functools import partial

import simpy

from sim.cluster.dynamics import Dynamics
from sim.cluster.engines import StepLog, engine_core, of_replica
from sim.cluster.fleet_plan import FleetPlan, Pool, RouterLike
from sim.cluster.handover_records import HandoverRecords
from sim.cluster.lives import Life
from sim.cluster.managed_gateway import ManagedGateway
from sim.cluster.places import Place, Places
from sim.cluster.processes import failing, scaling
from sim.cluster.queue_limits import QueueLimits, live_replica
from sim.cluster.records import joined
from sim.cluster.replica import Core, LiveReplica
from sim.cluster.routers.router import Fleet, Router
from sim.cluster.routers.table import router_for
from sim.cluster.watch import Watch
from sim.engine.records import EngineRecords
from sim.engine.request_source import RequestSource
from sim.engine.request_table import RequestTable


class ChangingFleet:
    """Places with their engines, the gateway, and the processes that change the fleet, all begun."""

    def __init__(
        self,
        env: simpy.Environment,
        plan: FleetPlan,
        dynamics: Dynamics,
        source: RequestSource,
        table: RequestTable,
        seed: int,
        step_log: StepLog | None = None,
    ) -> None:
        self._step_log = step_log
        self._env, self._plan, self._source, self._table, self._dynamics = env, plan, source, table, dynamics
        self.pool_of = pool_of = tuple(
            number
            for number, pool in enumerate(plan.pools)
            for _ in range(dynamics.num_places(number, pool.num_replicas))
        )
        autoscalers = {pool: policy.autoscaler() for pool, policy in dynamics.autoscale.items()}
        self._cores: list[list[Core]] = [[] for _ in pool_of]
        fleet = Fleet([plan.configs[pool] for pool in pool_of], source, seed, sends_again=True)
        self._fleet, self._seed = fleet, seed
        self._router = self._router_for(plan.router, is_prefill=False)
        self._places = places = Places(
            env,
            [Place(number, pool) for number, pool in enumerate(pool_of)],
            self._replica,
            start_up_s=[pool.start_up_s for pool in plan.pools],
            step_times=[pool.step_time for pool in plan.pools],
            noticed_s=dynamics.recovery.noticed_s,
        )
        watches = {
            pool: Watch(pool, autoscaler.window_s, plan.pools[pool].role) for pool, autoscaler in autoscalers.items()
        }
        self.gateway = gateway = self._gateway(watches)
        places.on_ready, places.on_lost, places.on_gone = gateway.ready, gateway.lost, gateway.gone
        first = set(self._first(dynamics))
        for number in range(len(places)):
            if number not in first:
                gateway.gone(places[number])
        for number in sorted(first):
            places.open(places[number])
        for fault_number, fault in enumerate(dynamics.faults):
            for number in range(len(places)):
                outages = fault.outages(number, seed, fault_number)
                env.process(failing(env, places[number], places, outages, fault.slow, gateway))
        for pool, autoscaler in autoscalers.items():
            env.process(scaling(env, autoscaler, pool, places, gateway))

    def _first(self, dynamics: Dynamics) -> list[int]:
        """The numbers of the replicas that are there from the beginning: the first places of each pool."""
        found: list[int] = []
        for number, pool in enumerate(self._plan.pools):
            start = self.pool_of.index(number)
            found += range(start, start + dynamics.num_first(number, pool.num_replicas))
        return found

    def _router_for(self, given: RouterLike, *, is_prefill: bool) -> Router:
        """Of the replicas that prefill for others, or of those that answer."""
        roles = [self._plan.pools[pool].role for pool in self.pool_of]
        return router_for(given, self._fleet, sum((role == "prefill") == is_prefill for role in roles))

    def _gateway(self, watches: Mapping[int, Watch]) -> ManagedGateway:
        return ManagedGateway(
            self._env,
            self._router,
            self._places,
            self._source,
            self._table,
            admission=self._dynamics.admission,
            recovery=self._dynamics.recovery,
            watches=watches,
            seed=self._seed,
        )

    def _replica(self, place: Place) -> LiveReplica:
        """A fresh engine in a place."""
        env, number, pool = self._env, place.number, place.pool
        core = self._made(place)
        gateway = self.gateway
        return live_replica(
            env,
            core,
            number,
            pool,
            partial(gateway.answered, number),
            self._router.scrape_interval_s,
            limits=QueueLimits.of(self._plan.configs[pool].engine),
            refuse=partial(gateway.refused, number),
        )

    def _made(self, place: Place) -> Core:
        """A fresh engine, whose records are kept."""
        core = self._core(place)
        self._cores[place.number].append(core)
        return core

    def _core(self, place: Place) -> Core:
        num_keys = self._source.num_keys(place.pool)
        pool = self._pool(place)
        log = of_replica(self._step_log, place.number)
        return engine_core(pool, self._table, place.number, start_s=self._env.now, num_keys=num_keys, step_log=log)

    def _pool(self, place: Place) -> Pool:
        """What a replica there is like now."""
        return self._plan.pools[place.pool]._replace(step_time=self._places.step_time(place))

    def records(self) -> list[EngineRecords]:
        """Of each place: all that its replicas did, one after the other."""
        for number, cores in enumerate(self._cores):
            if not cores:  # nobody was ever there
                cores.append(self._core(self._places[number]))
        return [joined([core.records() for core in cores]) for cores in self._cores]

    def handovers(self) -> HandoverRecords | None:
        """What was handed over between replicas; nothing here."""
        return None

    @property
    def lives(self) -> tuple[Life, ...]:
        return self._places.lives()
