"""A fleet of deployments: each pool's model on its GPUs, and the router before them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from sim.cluster.dynamics import Dynamics
from sim.cluster.engine_role import Role
from sim.cluster.fleet_plan import Disaggregation, FleetPlan, Pool, RouterLike, ServerPlan
from sim.cluster.front_end import FrontEnd
from sim.cluster.queue_limits import QueueLimits
from sim.cluster.routers.table import router_options
from sim.cluster.sharing import Sharing
from sim.deployment import DEFAULTS, Deployment, GpuLike, ModelLike, as_gpu, as_model, deploy
from sim.errors import ConfigError, SimError, nearest
from sim.handing_over import disaggregation, drafter_with_kv
from sim.memory.transfers import ReplicaKV
from sim.sharing import OptionsLike, sharing_of
from sim.specs.engine import EngineConfig
from sim.specs.fleet_file import FleetFile, FleetLike, PoolBlock, file_name, read_fleet, sharing_sections
from sim.steptime.options import DEFAULT_STEP_TIMES, StepTimeOptions
from sim.steptime.protocol import StepTimeModel
from sim.workload.trace import Trace

DEFAULT_ROUTER = "least_loaded"
RANKS_ROUTER = "vllm_dp"


@dataclass(frozen=True)
class DeployedPool:
    """Equal servers of a deployment; `given` are the engine arguments that were, for this pool or for all."""

    name: str
    deployment: Deployment
    given: EngineConfig
    num_servers: int = 1
    role: Role = "both"

    @property
    def num_replicas(self) -> int:
        """Their engines."""
        return self.num_servers * self.deployment.engine.data_parallel_size

    @property
    def num_addresses(self) -> int:
        return self.num_servers * self.deployment.engine.num_addresses

    @property
    def gpus_per_server(self) -> int:
        engine = self.deployment.engine
        return engine.data_parallel_size * engine.num_gpus

    @property
    def kv(self) -> ReplicaKV:
        """A replica's KV cache, as far as transfers are concerned."""
        return ReplicaKV(self.deployment.plan.kv_groups, self.deployment.engine.num_gpus)

    @property
    def num_gpus(self) -> int:
        return self.num_replicas * self.deployment.engine.num_gpus


@dataclass(frozen=True)
class DeployedFleet:
    """At least one pool. `asked` is the fleet file's content, None where a number of replicas was asked for.

    `dynamics` are what changes while it serves, None where nothing does; `sharing` is how replicas share KV, if they do.
    """

    pools: tuple[DeployedPool, ...]
    router: RouterLike = DEFAULT_ROUTER
    asked: FleetFile | None = None
    dynamics: Dynamics | None = None
    disaggregation: Disaggregation | None = None
    sharing: Sharing | None = None

    @classmethod
    def alike(
        cls, deployment: Deployment, given: EngineConfig, num_servers: int = 1, router: RouterLike | None = None
    ) -> "DeployedFleet":
        """Servers of one deployment. Raises ConfigError for a router that cannot share requests out to them."""
        fleet = cls((DeployedPool("replicas", deployment, given, num_servers),), router or DEFAULT_ROUTER)
        if router is None:
            return replace(fleet, router=RANKS_ROUTER) if fleet.has_one_balancer else fleet
        return fleet.check_router()

    @property
    def has_one_balancer(self) -> bool:
        """Whether all that shares requests out is the balancer of its only server. A fleet that changes has a gateway before it."""
        has_ranks = self.first.engine.data_parallel_size > 1
        return self.dynamics is None and has_ranks and self.pools[0].num_addresses == self.num_servers == 1

    def check_router(self) -> "DeployedFleet":
        """Returns itself. Raises ConfigError where the balancer of one address would share requests out to several."""
        has_ranks = any(pool.deployment.engine.data_parallel_size > 1 for pool in self.pools)
        routers = [self.router, self.disaggregation.router] if self.disaggregation else [self.router]
        is_of_one_server = any(router_options(router).is_of_one_server for router in routers if router is not None)
        if has_ranks and is_of_one_server and not self.has_one_balancer:
            raise ConfigError(
                f"router {RANKS_ROUTER} is what shares out requests within each server of several data-parallel ranks, and stands before"
                " neither several servers nor several addresses of one; choose another router."
            )
        return self

    def sharing_kv(self, kv_store: OptionsLike | None = None, kv_pull: OptionsLike | None = None) -> "DeployedFleet":
        """The same with a store, or with pulls, where they are asked for. Raises ConfigError for what is not simulated."""
        asked = sharing_sections(kv_store, kv_pull)
        if not asked:
            return self
        self._check_sharing(next(iter(asked)))
        deployments = {pool.name: pool.deployment for pool in self.pools}
        transfer = self.asked.transfer if self.asked else None
        return replace(self, sharing=sharing_of(kv_store, kv_pull, deployments, transfer))

    def _check_sharing(self, what: str) -> None:
        """Which fleets share KV by that."""
        if self.disaggregation and what != "kv_store":
            raise ConfigError(
                f"{what} is simulated for replicas that serve requests whole; leave it out, use kv_store in its place, or leave out the roles."
            )
        deployments = [pool.deployment for pool in self.pools]
        has_ranks = any(deployment.engine.data_parallel_size > 1 for deployment in deployments)
        steps_together = any(deployment.lock_step for deployment in deployments)
        if has_ranks and (self.dynamics or self.disaggregation):
            raise ConfigError(
                f"{what} with data_parallel_size is simulated for fleets that stay as they are and serve requests whole; leave it out, or use"
                " replicas in place of data_parallel_size."
            )
        if has_ranks and what != "kv_store" and (steps_together or not self.has_one_balancer):
            raise ConfigError(
                f"{what} with data_parallel_size is simulated for the independent engines of one server; leave it out, use kv_store in its place, or"
                " use replicas in place of data_parallel_size."
            )
        if steps_together and any(deployment.offload for deployment in deployments):
            raise ConfigError(
                f"{what} beside kv_offloading_size is not simulated for data-parallel ranks with experts, which step together; leave one of"
                " them out."
            )

    def sized(self, pool: int, num_servers: int) -> "DeployedFleet":
        """The same with so many servers in one pool. Raises ConfigError where a fault is then one of no replica, or a router of no use."""
        pools = list(self.pools)
        pools[pool] = replace(pools[pool], num_servers=num_servers)
        if self.dynamics:
            self.dynamics.check([one.num_servers for one in pools])
        return replace(self, pools=tuple(pools)).check_router()

    @property
    def first(self) -> Deployment:
        """Of the first pool."""
        return self.pools[0].deployment

    @property
    def is_unlike(self) -> bool:
        """Whether there are several pools."""
        return len(self.pools) > 1

    @property
    def num_servers(self) -> int:
        return sum(pool.num_servers for pool in self.pools)

    @property
    def num_replicas(self) -> int:
        return sum(pool.num_replicas for pool in self.pools)

    @property
    def most_addresses(self) -> int:
        """As many as the router may have to choose from at a time."""
        most = [
            self.dynamics.num_places(number, pool.num_servers) if self.dynamics else pool.num_servers
            for number, pool in enumerate(self.pools)
        ]
        return sum(count * pool.deployment.engine.num_addresses for count, pool in zip(most, self.pools, strict=True))

    @property
    def num_gpus(self) -> int:
        return sum(pool.num_gpus for pool in self.pools)

    @property
    def usd_per_gpu_hour(self) -> float | None:
        """The mean price of its GPUs; None where one of them has none."""
        prices = [pool.deployment.gpu.price_usd_per_hour for pool in self.pools]
        if len(set(prices)) == 1:
            return prices[0]
        known = [price * pool.num_gpus for price, pool in zip(prices, self.pools, strict=True) if price is not None]
        return sum(known) / self.num_gpus if len(known) == len(prices) else None

    def plan(
        self,
        timed: Callable[[StepTimeModel], StepTimeModel] = lambda step_time: step_time,
        *,
        trace: Trace | None = None,
        seed: int = 0,
    ) -> FleetPlan:
        """What is simulated; `timed` may change each pool's step times, `seed` is for what is left to chance in engines.

        The `trace` may say how a request fares there.
        """
        pools = [
            Pool(
                pool.deployment.config,
                timed(pool.deployment.step_time),
                pool.num_replicas,
                sum(self.start_up(number).values()),
                role=pool.role,
                kv=pool.kv,
                modes=pool.deployment.modes_for(trace, seed),
                server=self._server_plan(pool.deployment),
            )
            for number, pool in enumerate(self.pools)
        ]
        router = self._balancer if self.has_one_balancer else self.router
        return FleetPlan(tuple(pools), router, self.dynamics, self.disaggregation, self.sharing, self.front_end)

    @property
    def _balancer(self) -> RouterLike:
        """Behind an address: the only one's may have been asked for."""
        return self.router if router_options(self.router).is_of_one_server else RANKS_ROUTER

    def _server_plan(self, deployment: Deployment) -> ServerPlan | None:
        """None where a server is one engine, and where all are independent engines of the only one, whose balancer is the router."""
        engine, lock_step = deployment.engine, deployment.lock_step
        if engine.data_parallel_size == 1 or (lock_step is None and self.has_one_balancer):
            return None
        return ServerPlan(engine.data_parallel_size, lock_step, self._balancer, engine.num_addresses)

    @property
    def front_end(self) -> FrontEnd:
        """What clients' clocks have beyond the engines'; of unlike pools as the first one's."""
        return FrontEnd.of(self.first.gpu.operators.host)

    def start_up(self, pool: int) -> dict[str, float]:
        """Seconds of each phase of a start in the pool of that number; none where replicas stay."""
        if self.dynamics is None:
            return {}
        deployment = self.pools[pool].deployment
        weights_bytes, is_eager = deployment.plan.weights_bytes, deployment.engine.enforce_eager
        return self.dynamics.start_up_of(pool).phases(weights_bytes, enforce_eager=is_eager)


def deploy_fleet(
    model: ModelLike,
    gpu: GpuLike,
    engine: EngineConfig,
    fleet: FleetLike,
    *,
    router: RouterLike | None = None,
    shared_by: Mapping[str, OptionsLike | None] | None = None,
    vllm_version: str | None = None,
    step_times: StepTimeOptions = DEFAULT_STEP_TIMES,
) -> DeployedFleet:
    """What `vllm serve` would make of each pool, which starts; the arguments, `shared_by` a
    `kv_store` or `kv_pull` among them, are for what the file leaves open.

    Raises SimError that names file and pool.
    """
    asked, name = read_fleet(fleet).sharing_kv(**(shared_by or {})), file_name(fleet)
    if router is not None and asked.router is not None:
        raise ConfigError(f"{name} has a router, {asked.router!r}, and {router!r} is asked for; leave one of them out.")
    pools = []
    for pool, block in zip(asked.names, asked.pools, strict=True):
        with _naming(f"{name}: {pool}"):
            given, on = pool_engine(engine, block), as_gpu(block.gpu or gpu)
            found = deploy(as_model(model, given), on, given, vllm_version=vllm_version, step_times=step_times)
            pools.append(DeployedPool(pool, found.require_runnable(), given, block.replicas, block.role))
    with _naming(name):
        router_options(chosen := asked.router or router or DEFAULT_ROUTER)
        dynamics = Dynamics.parse(asked.changes).check([pool.num_servers for pool in pools]) if asked.changes else None
        if any(pool.role != "both" for pool in pools):
            _check_cpu_tiers(pools)
        if dynamics:
            _refuse_changing_stages(pools)
        _refuse_stages_with_roles(pools)
        _check_drafters(pools)
        _refuse_what_ifs_beside_roles(pools)
        _refuse_queue_limits(pools, is_one_server=bool(dynamics) and router_options(chosen).is_of_one_server)
        handing_over = disaggregation(
            asked, [pool.deployment.gpu for pool in pools], pools[0].deployment.engine.vllm_version
        )
        whole = DeployedFleet(tuple(pools), chosen, asked, dynamics, handing_over).check_router()
        return whole.sharing_kv(asked.kv_store, asked.kv_pull)


def _refuse_changing_stages(pools: Sequence[DeployedPool]) -> None:
    """Where servers come and go whose ranks step together."""
    for pool in pools:
        if pool.deployment.lock_step and pool.deployment.modes.num_stages > 1:
            raise ConfigError(
                f"{pool.name}: pipeline_parallel_size {pool.deployment.modes.num_stages} of ranks that step together is simulated for fleets"
                " that stay as they are; use tensor_parallel_size in its place, or leave out what changes."
            )


def _check_cpu_tiers(pools: Sequence[DeployedPool]) -> None:
    """Where pools have roles."""
    for pool in pools:
        deployment = pool.deployment
        if pool.role == "both" or deployment.offload is None:
            continue
        if deployment.lock_step:
            raise ConfigError(
                f"{pool.name}: kv_offloading_size is simulated in pools with a role for engines that step alone, got data_parallel_size"
                f" {deployment.engine.data_parallel_size} of experts; use replicas in its place, or leave one of the two out."
            )
        if not deployment.engine.enable_prefix_caching:
            raise ConfigError(
                f"{pool.name}: kv_offloading_size in pools with a role is simulated with prefix caching, which tells who takes a block that"
                " is being stored; enable it, or leave kv_offloading_size out."
            )


def _refuse_stages_with_roles(pools: Sequence[DeployedPool]) -> None:
    for pool in pools:
        if pool.role != "both" and pool.deployment.modes.num_stages > 1:
            raise ConfigError(
                f"{pool.name}: KV is handed over between engines of one stage, as vLLM's NIXL connector does, got"
                f" pipeline_parallel_size {pool.deployment.modes.num_stages}; use tensor_parallel_size in pools with a role."
            )


def _check_drafters(pools: Sequence[DeployedPool]) -> None:
    """As vLLM's NIXL connector does, whose two sides register the layers of model and drafter alike (nixl/metadata.py of 0.32)."""
    handing_over = [pool for pool in pools if pool.role != "both"]
    for pool in handing_over[1:]:
        first, own = (drafter_with_kv(one.deployment.engine) for one in (handing_over[0], pool))
        if first != own:
            raise ConfigError(
                f"{pool.name}: a drafter's KV is handed over with the model's, and vLLM refuses a transfer between engines whose drafters"
                f" differ, got {own} and, in {handing_over[0].name}, {first}; give both the same speculative_config."
            )


def _refuse_what_ifs_beside_roles(pools: Sequence[DeployedPool]) -> None:
    """But for an order of those who wait that needs no more than themselves."""
    for pool in pools:
        for name, value in pool.deployment.engine.what_ifs.items():
            if pool.role != "both" and value != "sjf":
                raise ConfigError(
                    f"{pool.name}: {name} {value} is simulated for replicas that serve requests whole; leave it out, or leave out"
                    " the role."
                )


def _refuse_queue_limits(pools: Sequence[DeployedPool], *, is_one_server: bool) -> None:
    for pool in pools:
        if QueueLimits.of(pool.deployment.engine) and (is_one_server or pool.role != "both"):
            raise ConfigError(
                f"{pool.name}: max_num_queued_reqs and max_num_queued_tokens are simulated for servers that answer requests whole,"
                " and for the engines of one server as long as these stay; leave them out, or leave out the roles and what changes."
            )


@contextmanager
def _naming(place: str) -> Iterator[None]:
    """Errors say where what they are about stands."""
    try:
        yield
    except SimError as error:
        raise type(error)(f"{place}: {error}") from None


def pool_engine(base: EngineConfig, block: PoolBlock) -> EngineConfig:
    """The arguments of the command line with those of the pool in their place. Raises ConfigError for an unknown one."""
    changes: dict[str, Any] = {}
    for name, value in block.engine.items():
        if name not in EngineConfig.__dataclass_fields__:
            known = EngineConfig.__dataclass_fields__
            raise ConfigError(f"`engine.{name}` is no engine argument.{nearest(name, known)}")
        default = getattr(DEFAULTS, name)
        changes[name] = default if value is None else tuple(value) if isinstance(value, list) else value
    return replace(base, **changes)
