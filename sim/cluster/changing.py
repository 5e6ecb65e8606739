"""A run of a fleet that changes: its replicas, or servers of several, come and go, and its gateway keeps, aborts and retries requests."""

from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

import simpy

from sim.cluster.dynamics import Dynamics
from sim.cluster.engines import StepLog, engine_core, of_replica
from sim.cluster.fleet_plan import FleetPlan, Pool, RouterLike
from sim.cluster.handover_records import HandoverRecords
from sim.cluster.lives import Life
from sim.cluster.lock_step import RankCore
from sim.cluster.managed_gateway import ManagedGateway
from sim.cluster.managed_server import ManagedAddress, ManagedServer, NotingGateway
from sim.cluster.places import Place, Places, State, Tenant
from sim.cluster.processes import failing, scaling
from sim.cluster.queue_limits import QueueLimits, live_replica
from sim.cluster.records import joined
from sim.cluster.replica import LiveReplica
from sim.cluster.routers.router import Fleet, Router
from sim.cluster.routers.table import router_for
from sim.cluster.servers import Front, ServerMaker, rank_names
from sim.cluster.shared_records import SharedRecords
from sim.cluster.watch import Watch
from sim.engine.driven import Core
from sim.engine.rank_records import RankRecords
from sim.engine.records import EngineRecords
from sim.engine.request_source import RequestSource
from sim.engine.request_table import RequestTable

GatewayT = TypeVar("GatewayT", bound=ManagedGateway)


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
        all_places = _places(plan, dynamics)
        self.pool_of = tuple(place.pool for place in all_places for _ in place.replicas)
        self._address_pools = [place.pool for place in all_places for _ in place.addresses]
        autoscalers = {pool: policy.autoscaler() for pool, policy in dynamics.autoscale.items()}
        self._cores: list[list[Core]] = [[] for _ in self.pool_of]
        self._rank_records: list[list[RankRecords]] = [[] for _ in all_places]
        fleet = Fleet([plan.configs[pool] for pool in self._address_pools], source, seed, sends_again=True)
        self._fleet, self._seed = fleet, seed
        self._router = self._router_for(plan.router, is_prefill=False)
        self._places = places = Places(
            env,
            all_places,
            self._tenant,
            start_up_s=[pool.start_up_s for pool in plan.pools],
            step_times=[pool.step_time for pool in plan.pools],
            noticed_s=dynamics.recovery.noticed_s,
        )
        watches = {pool: Watch(pool, autoscaler, plan.pools[pool].role) for pool, autoscaler in autoscalers.items()}
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
        """The numbers of the places that are taken from the beginning: the first of each pool."""
        found: list[int] = []
        for number, pool in enumerate(self._plan.pools):
            start = next(place.number for place in self._places.of_pool(number, State.EMPTY))
            found += range(start, start + dynamics.num_first(number, pool.num_servers))
        return found

    def _router_for(self, given: RouterLike, *, is_prefill: bool) -> Router:
        """Of the replicas that prefill for others, or of those that answer."""
        roles = [self._plan.pools[pool].role for pool in self._address_pools]
        return router_for(given, self._fleet, sum((role == "prefill") == is_prefill for role in roles))

    def _gateway(self, watches: Mapping[int, Watch]) -> ManagedGateway:
        return self._managed(ManagedGateway, watches)

    def _managed(self, kind: type[GatewayT], watches: Mapping[int, Watch], **more: Any) -> GatewayT:
        """A gateway of that kind before all places."""
        return kind(
            self._env,
            self._router,
            self._places,
            self._source,
            self._table,
            admission=self._dynamics.admission,
            recovery=self._dynamics.recovery,
            watches=watches,
            seed=self._seed,
            kind=self._kind,
            **more,
        )

    @property
    def _kind(self) -> str:
        """What stands in places."""
        return "server" if self._plan.has_servers else "replica"

    def _tenant(self, place: Place) -> Tenant:
        """A fresh replica in a place, or a server of several."""
        return self._replica(place) if self._plan.pools[place.pool].server is None else self._server(place)

    def _replica(self, place: Place) -> LiveReplica:
        (number,), front = place.addresses, self._front(place)
        replica = live_replica(
            self._env,
            self._made(place),
            number,
            place.pool,
            partial(front.answered, number),
            front.scrape_interval_s,
            limits=QueueLimits.of(self._plan.configs[place.pool].engine),
            refuse=partial(front.refused, number),
        )
        (replica.number_in_fleet,) = place.replicas
        return replica

    def _front(self, place: Place) -> Front:  # noqa: ARG002 - one for all
        """Who looks at the addresses of what is there, and hears from them."""
        gateway = self.gateway
        return Front(self._router.scrape_interval_s, gateway.answered, gateway.refused)

    def _server(self, place: Place) -> ManagedServer:
        maker = ServerMaker(
            self._env,
            self._source,
            lambda _pool, number, log: self._kept(number, self._core(place, number, log)),
            is_live=True,
            step_log=self._step_log,
            gateway=NotingGateway,
            address=ManagedAddress,
        )
        names = rank_names(place.number, place.replicas)
        server = maker.server(
            self._pool(place), place.pool, place.replicas, place.addresses.start, self._front(place), names
        )
        if server.group:
            self._rank_records[place.number].append(server.group.records)
        return ManagedServer(server)

    def _made(self, place: Place) -> RankCore:
        """The engine of a replica by itself."""
        (number,) = place.replicas
        return self._kept(number, self._core(place, number, of_replica(self._step_log, number)))

    def _kept(self, number: int, core: RankCore) -> RankCore:
        """A fresh engine, whose records are kept."""
        self._cores[number].append(core)
        return core

    def _core(self, place: Place, number: int, log: StepLog | None) -> RankCore:
        """That of a replica of that number."""
        num_keys = self._source.num_keys(place.pool)
        pool = self._pool(place)
        return engine_core(pool, self._table, number, start_s=self._env.now, num_keys=num_keys, step_log=log)

    def _pool(self, place: Place) -> Pool:
        """What a replica there is like now."""
        return self._plan.pools[place.pool]._replace(step_time=self._places.step_time(place))

    def records(self) -> list[EngineRecords]:
        """Of each number: all that its replicas did, one after the other."""
        for place in self._places:
            for number in place.replicas:
                if not self._cores[number]:  # nobody was ever there
                    self._kept(number, self._core(place, number, None))
        return [joined([core.records() for core in cores]) for cores in self._cores]

    @property
    def ranks(self) -> tuple[RankRecords, ...]:
        """Of each place for a server whose engines step together: what those that were there cost each other."""
        found: list[RankRecords] = []
        for place in self._places:
            server = self._plan.pools[place.pool].server
            if server and server.lock_step:
                found.append(RankRecords(server.num_engines, may_split=server.lock_step.dbo is not None))
                for records in self._rank_records[place.number]:
                    found[-1].add(records)
        return tuple(found)

    @property
    def server_of(self) -> tuple[int, ...]:
        """The number of each replica's place, where some are those of servers."""
        return tuple(place.number for place in self._places for _ in place.replicas) if self._plan.has_servers else ()

    def handovers(self) -> HandoverRecords | None:
        """What was handed over between replicas; nothing here."""
        return None

    def shared(self) -> SharedRecords | None:
        """What came of sharing KV; nothing here. To be asked for after `records`."""
        return None

    @property
    def lives(self) -> tuple[Life, ...]:
        return self._places.lives()


def _places(plan: FleetPlan, dynamics: Dynamics) -> list[Place]:
    """As many as each pool may need; replicas and addresses are numbered through all of them."""
    found: list[Place] = []
    num_replicas = num_addresses = 0
    for number, pool in enumerate(plan.pools):
        size, at = pool.engines_per_server, len(pool.behind_addresses)
        for _ in range(dynamics.num_places(number, pool.num_servers)):
            replicas, addresses = range(num_replicas, num_replicas + size), range(num_addresses, num_addresses + at)
            found.append(Place(len(found), number, replicas, addresses))
            num_replicas, num_addresses = replicas.stop, addresses.stop
    return found
