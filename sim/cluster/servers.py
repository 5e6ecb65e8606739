"""Servers of several engines, their data-parallel ranks, behind a router: each address of a server shares out what it is sent.

Mirrors vLLM's balancing (0.32 and 0.33), whose three ways differ in how many ranks are behind an address: all of a server, those of a node
(`data_parallel_hybrid_lb`), or one (`data_parallel_external_lb`).

- An API server manages the ranks behind its address alone, in order (MPClient.engine_ranks_managed of v1/engine/core_client.py). Of several it
  chooses one (DPLBAsyncMPClient.get_core_engine_for_request), of one there is nothing to choose (make_async_mp_client).
- One coordinator, of all ranks, sends every API server the counts of all at the same times (v1/engine/coordinator.py); each takes those of its own
  ranks (DPAsyncMPClient, `count_slice`). With addresses a rank none are sent (EngineCoreProc.publish_dp_lb_stats of v1/engine/core.py).
- Waves are those of all ranks, whatever address a request came to (coordinator.py, `_send_start_wave`).
- An API server's metrics and its limits of what it takes in are of its own ranks (AsyncLLM of v1/engine/async_llm.py: `engine_idxs`, check_admission).

Deliberate differences: of an address of several engines, an index of prefixes that hears of every cache knows the longest one that any of them
holds; where a server has several addresses, each has one API server, where vLLM by default starts one for each of its ranks (entrypoints/cli/serve.py).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import simpy

from sim.cluster.course import Listener
from sim.cluster.endless import check_holds_nobody
from sim.cluster.engines import StepLog, engine_core, named
from sim.cluster.fleet_plan import FleetPlan, Pool
from sim.cluster.gateway import Gateway
from sim.cluster.listened import ListenedReplicas, Tell
from sim.cluster.lock_step import LazyRanks, LiveRanks, Rank, RankCore
from sim.cluster.parallel_sampling import ParallelSampling
from sim.cluster.queue_limits import QueueLimits
from sim.cluster.rank_log import RankLog
from sim.cluster.replica import LiveReplica, Replica
from sim.cluster.routers.router import Fleet, Router
from sim.cluster.routers.simple import TheOnlyOne
from sim.cluster.routers.table import router_for, router_options
from sim.cluster.routers.vllm_dp import VllmDataParallel
from sim.cluster.staged_ranks import LazyStagedRanks, LiveStagedRanks
from sim.engine.metrics import NOTHING_SHOWN, Metrics
from sim.engine.rank_group import LockStepRules, RankGroup
from sim.engine.rank_records import RankRecords
from sim.engine.records import EngineRecords
from sim.engine.request import Request
from sim.engine.request_source import RequestSource
from sim.engine.request_table import RequestTable
from sim.engine.staged_group import StagedGroup
from sim.engine.ticks import Ticks, ticks
from sim.engine.walking.staged_rank import StagedRank
from sim.steptime.protocol import StepTimeModel


class Engines(Protocol):
    """Those of a server. They catch up before a request is routed, unless they live on the clock."""

    @property
    def replicas(self) -> Sequence[Replica]: ...

    def catch_up(self, now_s: float) -> None:
        """A request comes: do what is due before."""
        ...

    def finish(self) -> None:
        """No more requests will come."""
        ...

    def seen(self, front: int) -> Metrics:
        """What the first engine of an address showed at the last multiple of the interval at which the fleet's router looks."""
        ...


class LiveEngines:
    """Engines that know nothing of each other, as processes; the fleet's router looks at the `fronts` of their addresses."""

    def __init__(
        self,
        env: simpy.Environment,
        cores: Mapping[int, RankCore],
        pool: int,
        tell: Tell,
        scrape_interval_s: float | None,
        look_interval_s: float | None,
        fronts: Collection[int],
    ) -> None:
        """`cores` by their numbers in the fleet."""
        self.replicas: list[SeenReplica] = []
        for number, (number_in_fleet, core) in enumerate(cores.items()):
            looks = ticks(look_interval_s) if number in fronts else None
            replica = SeenReplica(env, core, number, pool, partial(tell, number), scrape_interval_s, looks=looks)
            replica.number_in_fleet = number_in_fleet
            self.replicas.append(replica)

    def catch_up(self, now_s: float) -> None:
        """The clock sees to that."""

    def finish(self) -> None:
        """The clock sees to that."""

    def seen(self, front: int) -> Metrics:
        return self.replicas[front].seen

    @property
    def engines_now(self) -> Sequence[Metrics]:
        """What each shows after all that has come back by now and before the passes of this instant."""
        return [replica.metrics_now for replica in self.replicas]

    def abort(self, engine: int, answer: Request, reason: str) -> None:
        """End an answer that was submitted to an engine."""
        self.replicas[engine].abort(answer, reason=reason)

    def refuse(self, answer: Request, reason: str) -> None:
        """Record one as failed that has come to no engine; with the first."""
        self.replicas[0].refuse(answer, reason)

    def use(self, step_time: StepTimeModel) -> None:
        """Steps of passes that have not begun take other times from now on."""
        for replica in self.replicas:
            replica.use(step_time)

    def halt(self) -> dict[Request, int]:
        """All are lost now: the tokens that each request has returned."""
        return {request: num_tokens for replica in self.replicas for request, num_tokens in replica.halt().items()}


class SeenReplica(LiveReplica):
    """A server's engine, at which the fleet's router may `look` beside the balancer of its address."""

    def __init__(
        self,
        env: simpy.Environment,
        core: RankCore,
        number: int,
        pool: int,
        on_finished: Listener,
        scrape_interval_s: float | None,
        *,
        looks: Ticks | None,
    ) -> None:
        super().__init__(env, core, number, pool, on_finished, scrape_interval_s)
        self._looks = looks
        self._seen = NOTHING_SHOWN

    @property
    def seen(self) -> Metrics:
        self._show()
        return self._seen

    def _show(self) -> None:
        looks = self._looks
        if looks is not None and looks.passed(self._env.now):
            self._seen = self._shown_before(looks.last_s)
        super()._show()


class Address:
    """Where the fleet's router sends requests: a Replica to it, with engines `behind` it, by their numbers in the server.

    vLLM's metrics have a series for each engine of an address, of which llm-d takes the first (getLatestMetric of llm-d-router's
    extractor/metrics/spec.go @45c38549: of series without time stamps the first). Loads of this instant are of all its engines.
    """

    def __init__(
        self,
        number: int,
        pool: int,
        gateway: Gateway,
        on_answered: Tell,
        behind: range,
    ) -> None:
        self.number = number
        self.pool = pool
        self.behind = behind
        self.balancer = gateway.router
        self._gateway = gateway
        self._on_answered = on_answered

    def lead_to(self, engines: Engines, replicas: range) -> None:
        """To those of a server, which have these numbers in the fleet."""
        self._engines = engines
        self._replicas = replicas
        self._gateway.replicas = engines.replicas[self.behind.start : self.behind.stop]

    def submit(self, *answers: Request) -> None:
        request, *others = answers
        self._engines.catch_up(request.arrival_s)
        self._gateway.take(request, others)

    @property
    def load(self) -> tuple[int, int]:
        loads = [engine.load for engine in self._gateway.replicas]
        num_waiting = self._gateway.num_undecided + sum(waiting for waiting, _ in loads)
        return num_waiting, sum(running for _, running in loads)

    def metrics(self, at_s: float) -> Metrics:  # noqa: ARG002 - a replica's interface
        return self._engines.seen(self.behind.start)

    def num_cached_blocks(self, request: Request) -> int:
        return max(engine.num_cached_blocks(request) for engine in self._gateway.replicas)

    def num_offloaded_blocks(self, request: Request, num_cached_blocks: int) -> int:
        return max(engine.num_offloaded_blocks(request, num_cached_blocks) for engine in self._gateway.replicas)

    def answered(self, engine: int, finished: Sequence[Request]) -> None:
        """Requests have ended at an engine."""
        self._gateway.answered(engine - self.behind.start, finished)
        self._on_answered(self.number, finished)


class LazyAddress(Address):
    """That of all engines of a server, which catch up as requests come: what one asks of them and their balancer is one call, compiled as they are."""

    def lead_to(self, engines: Engines, replicas: range) -> None:
        super().lead_to(engines, replicas)
        assert isinstance(engines, LazyRanks | ListenedReplicas)
        assert isinstance(self.balancer, VllmDataParallel)
        self._lazy, self._balancers = engines, self.balancer.balancers

    def submit(self, *answers: Request) -> None:
        for ended in self._lazy.serve(answers, self._balancers):
            self._on_answered(self.number, ended[-1])


class Server(NamedTuple):
    """Its engines, by their numbers in the fleet; what has them catch up; their group, if they step together; and its addresses."""

    cores: dict[int, RankCore]
    engines: Engines
    group: RankGroup | StagedGroup | None
    addresses: Sequence[Address]


class Front(NamedTuple):
    """What a fleet's router is to addresses: when it looks at them, and who is told what they have answered and refused, by their numbers."""

    scrape_interval_s: float | None
    answered: Tell
    refused: Callable[[int, Request, str], None]


class CoreMaker(Protocol):
    """Makes the engine of a replica, of a pool's number and its own."""

    def __call__(self, pool: int, number: int, step_log: StepLog | None) -> RankCore: ...


class ServerMaker:
    """Makes servers. Engines that are not live catch up as requests come; live ones may get requests that arrived elsewhere before."""

    def __init__(
        self,
        env: simpy.Environment,
        source: RequestSource,
        make_core: CoreMaker,
        *,
        is_live: bool,
        step_log: StepLog | None,
        gateway: type[Gateway] = Gateway,
        address: type[Address] = Address,
    ) -> None:
        """Of what kind the gateway is behind an address, and the address itself."""
        self._env = env
        self._source = source
        self._make_core = make_core
        self._is_live = is_live
        self._step_log = step_log
        self._gateway = gateway
        self._kind = address

    def server(
        self,
        pool: Pool,
        pool_number: int,
        replicas: range,
        first_address: int,
        front: Front,
        names: Sequence[Mapping[str, int]],
    ) -> Server:
        """One of a pool with engines of these numbers, which the step log calls by these names, and addresses numbered from the first on."""
        addresses = [
            self._address(pool, pool_number, front, first_address + place, engines)
            for place, engines in enumerate(pool.behind_addresses)
        ]
        of_engine = [address for address in addresses for _ in address.behind]

        def tell(engine: int, finished: Sequence[Request]) -> None:
            of_engine[engine].answered(engine, finished)

        rules = pool.server.lock_step if pool.server else None
        log = RankLog(self._step_log, names) if self._step_log and rules else None
        cores = {
            replica: self._make_core(
                pool_number, replica, log.of_rank(rank) if log else named(self._step_log, names[rank])
            )
            for rank, replica in enumerate(replicas)
        }
        look_interval_s = front.scrape_interval_s
        looks = ticks(look_interval_s)
        interval_s = addresses[0].balancer.scrape_interval_s
        group: RankGroup | StagedGroup | None = None
        engines: Engines
        staged = [core for core in cores.values() if isinstance(core, StagedRank)]
        if staged and rules:
            group = self._staged_group(pool, rules, staged, interval_s, log)
            engines = self._staged(staged, group, tell, looks, replicas.start)
        elif rules:
            group = self._group(pool, rules, list(cores.values()), interval_s, log)
            engines = self._in_lock_step(list(cores.values()), group, tell, looks, replicas.start)
        else:
            fronts = [address.behind.start for address in addresses]
            engines = self._independent(cores, pool_number, tell, interval_s, look_interval_s, fronts)
        for address in addresses:
            address.lead_to(engines, replicas)
        return Server(cores, engines, group, addresses)

    def _address(self, pool: Pool, pool_number: int, front: Front, number: int, behind: range) -> Address:
        """That of the number, with these engines of its server behind it."""
        balancer: Router = TheOnlyOne()
        if pool.server and len(behind) > 1:
            clock = self._clock if self._is_live else None
            fleet = Fleet([pool.config] * len(behind), self._source, clock=clock)
            balancer = router_for(pool.server.balancer, fleet, len(behind))
        gateway = self._gateway(
            self._env,
            balancer,
            reject=partial(front.refused, number),
            limits=QueueLimits.of(pool.config.engine),
            sampling=ParallelSampling.of(self._source, one_by_one=len(behind) > 1),
        )
        is_staged = pool.server and pool.server.lock_step and pool.modes.num_stages > 1
        has_all = len(behind) == pool.engines_per_server
        is_lazy = has_all and not (is_staged or self._is_live) and isinstance(balancer, VllmDataParallel)
        kind = LazyAddress if is_lazy else self._kind
        return kind(number, pool_number, gateway, front.answered, behind)

    def _clock(self) -> float:
        return self._env.now

    def _group(
        self,
        pool: Pool,
        rules: LockStepRules,
        cores: Sequence[RankCore],
        scrape_interval_s: float | None,
        log: RankLog | None,
    ) -> RankGroup:
        return RankGroup(
            cores,
            pool.step_time,
            rules,
            num_batches_in_flight=pool.config.num_batches_in_flight,
            start_s=self._env.now,
            scrape_interval_s=scrape_interval_s,
            log=log,
        )

    def _staged_group(
        self,
        pool: Pool,
        rules: LockStepRules,
        cores: Sequence[StagedRank],
        scrape_interval_s: float | None,
        log: RankLog | None,
    ) -> StagedGroup:
        return StagedGroup(
            cores,
            pool.step_time,
            rules,
            num_stages=pool.modes.num_stages,
            is_async=pool.config.engine.async_scheduling,
            start_s=self._env.now,
            scrape_interval_s=scrape_interval_s,
            log=log,
        )

    def _staged(
        self, cores: Sequence[StagedRank], group: StagedGroup, tell: Tell, looks: Ticks | None, first: int
    ) -> Engines:
        if self._is_live:
            return LiveStagedRanks(self._env, cores, group, tell, looks, first)
        return LazyStagedRanks(cores, group, tell, looks)

    def _in_lock_step(
        self, cores: Sequence[RankCore], group: RankGroup, tell: Tell, looks: Ticks | None, first: int
    ) -> Engines:
        if self._is_live:
            return LiveRanks(self._env, cores, group, tell, looks, first)
        return LazyRanks(cores, group, tell, looks)

    def _independent(
        self,
        cores: Mapping[int, RankCore],
        pool: int,
        tell: Tell,
        scrape_interval_s: float | None,
        look_interval_s: float | None,
        fronts: Sequence[int],
    ) -> Engines:
        if self._is_live:
            return LiveEngines(self._env, cores, pool, tell, scrape_interval_s, look_interval_s, fronts)
        engines = ((core, pool) for core in cores.values())
        return ListenedReplicas(engines, tell, scrape_interval_s, ticks(look_interval_s), fronts)


def live_engines(server: Server) -> list[LiveReplica | Rank]:
    """In order of their numbers, if they are live."""
    return [engine for engine in server.engines.replicas if isinstance(engine, LiveReplica | Rank)]


class Servers:
    """All servers of a plan, whose `addresses` are what its routers choose from; `front_of` says before which one a pool stands."""

    def __init__(
        self,
        env: simpy.Environment,
        plan: FleetPlan,
        source: RequestSource,
        make_core: CoreMaker,
        front_of: Callable[[Pool], Front],
        *,
        is_live: bool,
        step_log: StepLog | None,
    ) -> None:
        maker = ServerMaker(env, source, make_core, is_live=is_live, step_log=step_log)
        self.addresses: list[Address] = []
        self._servers: list[Server] = []
        for number, (pool_number, replicas) in enumerate(plan.servers):
            pool = plan.pools[pool_number]
            names = _names(plan, number, replicas)
            self._servers.append(maker.server(pool, pool_number, replicas, len(self.addresses), front_of(pool), names))
            self.addresses += self._servers[-1].addresses

    def catch_up(self, now_s: float) -> None:
        """A request comes: do what is due before."""
        for server in self._servers:
            server.engines.catch_up(now_s)

    def finish(self) -> None:
        """No more requests will come."""
        for server in self._servers:
            server.engines.finish()

    @property
    def live_engines(self) -> list[LiveReplica | Rank]:
        """By their numbers in the fleet, if they are live."""
        return [engine for server in self._servers for engine in live_engines(server)]

    def records(self) -> list[EngineRecords]:
        """Of each engine. Raises ConfigError where requests wait for ever."""
        cores = {number: core for server in self._servers for number, core in server.cores.items()}
        for number, core in cores.items():
            check_holds_nobody(core, number)
        return [core.records() for core in cores.values()]

    @property
    def ranks(self) -> tuple[RankRecords, ...]:
        """Of each server whose engines step together."""
        return tuple(server.group.records for server in self._servers if server.group)


def _names(plan: FleetPlan, server: int, numbers: range) -> list[dict[str, int]]:
    """What the step log calls a server's engines; the only server's by their ranks, those of fleets without ranks by their numbers."""
    if not plan.has_servers:
        return [{"replica": replica} for replica in numbers]
    if len(plan.servers) == 1:
        return [{"rank": rank} for rank in range(len(numbers))]
    return rank_names(server, numbers)


def rank_names(server: int, numbers: range) -> list[dict[str, int]]:
    """Of one server among several."""
    return [{"replica": replica, "server": server, "rank": rank} for rank, replica in enumerate(numbers)]


class ServerFleet:
    """All servers of a plan, some of which have several engines, and the `gateway` before them.

    Where clients or limits wait for answers they live on the clock; else they catch up as requests come.
    """

    def __init__(
        self,
        env: simpy.Environment,
        plan: FleetPlan,
        source: RequestSource,
        table: RequestTable,
        *,
        seed: int,
        is_live: bool,
        step_log: StepLog | None,
    ) -> None:
        self._env, self._plan, self._source, self._table = env, plan, source, table
        configs = [plan.pools[pool].config for pool in plan.address_pools]
        self.gateway = Gateway(
            env,
            router_for(plan.router, Fleet(configs, source, seed), len(configs)),
            unable=source.unable,
            fit=source.fit if source.other_keys else None,
            reject=table.reject,
            is_blind=len(configs) == 1 or router_options(plan.router).is_blind,
            sampling=ParallelSampling.of(source),
        )
        front = Front(self.gateway.router.scrape_interval_s, self.gateway.answered, self.gateway.refused)
        self.servers = Servers(env, plan, source, self._core, lambda _pool: front, is_live=is_live, step_log=step_log)
        self.gateway.replicas = self.servers.addresses

    def _core(self, pool: int, number: int, step_log: StepLog | None) -> RankCore:
        keys = self._source.num_keys(pool)
        return engine_core(
            self._plan.pools[pool], self._table, number, start_s=self._env.now, num_keys=keys, step_log=step_log
        )

    def arrive(self, request: Request) -> None:
        """A request comes: route it by what is known."""
        if not self.gateway.is_blind:
            self.servers.catch_up(request.arrival_s)
        self.gateway.submit(request)
