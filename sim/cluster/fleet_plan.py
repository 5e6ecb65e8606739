"""What a fleet is made of: pools of equal replicas, and the router before them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from sim.cluster.dynamics import Dynamics
from sim.cluster.engine_role import Role
from sim.cluster.front_end import NO_FRONT_END, FrontEnd
from sim.cluster.leases import NEWEST_LEASE, Lease
from sim.cluster.network import NetworkCosts
from sim.cluster.sharing import Sharing
from sim.engine.config import SchedulerConfig
from sim.engine.rank_group import LockStepRules
from sim.engine.request_source import RequestSource
from sim.engine.walking.modes import PLAIN, Modes
from sim.memory.transfers import ReplicaKV
from sim.specs.kv_transfer import LoadFailurePolicy
from sim.steptime.protocol import StepTimeModel
from sim.workload.trace import Trace

DeciderLike = str | Mapping[str, Any]
"""A decider's name, with options behind a colon, or `{policy: prefix_based, non_cached_tokens: 512}`."""
RouterLike = str | Mapping[str, Any]
"""A router's name, with options behind a colon, or `{policy: llm_d, queue: 2}`."""


class ServerPlan(NamedTuple):
    """A server of several engines, its data-parallel ranks, which step together where there are rules of `lock_step`.

    They are shared out evenly to the server's addresses, in order; behind each of several engines a `balancer` of its own shares requests out.
    """

    num_engines: int
    lock_step: LockStepRules | None = None
    balancer: RouterLike = "vllm_dp"
    num_addresses: int = 1


class Pool(NamedTuple):
    """Equal replicas: how they schedule, how long their steps take, how long a new one takes to start, and its KV if it moves.

    `modes` are what they do beyond the plain engine. Every so many are the engines of a `server`; without it each is one by itself.
    """

    config: SchedulerConfig
    step_time: StepTimeModel
    num_replicas: int = 1
    start_up_s: float = 0.0
    role: Role = "both"
    kv: ReplicaKV = ReplicaKV((), 1)
    modes: Modes = PLAIN
    server: ServerPlan | None = None

    @property
    def engines_per_server(self) -> int:
        return self.server.num_engines if self.server else 1

    @property
    def num_servers(self) -> int:
        """A replica by itself is one."""
        return self.num_replicas // self.engines_per_server

    @property
    def behind_addresses(self) -> list[range]:
        """The engines of a server, counted from 0, behind each of its addresses."""
        num_engines = self.engines_per_server
        size = num_engines // self.server.num_addresses if self.server else 1
        return [range(first, first + size) for first in range(0, num_engines, size)]

    @property
    def num_slots_ahead(self) -> int:
        """Slots that a request may ask for beyond its tokens."""
        return self.modes.num_slots_ahead(self.config)


@dataclass(frozen=True)
class Disaggregation:
    """Which requests are prefilled elsewhere, by whom, and what it costs to move their KV; `router` None is the fleet's.

    Also how long KV is kept for whoever does not fetch it, and what becomes of a request whose KV could not be fetched.
    """

    costs: NetworkCosts
    decider: DeciderLike = "always"
    router: RouterLike | None = None
    lease: Lease = NEWEST_LEASE
    kv_load_failure_policy: LoadFailurePolicy = "fail"


@dataclass(frozen=True)
class FleetPlan:
    """Pools in order: replicas are numbered from 0 through all of them. `dynamics` are what changes, if anything does.

    Replicas may be `sharing` KV, those with roles by a store. Servers have a `front_end`, which shows where clients have a clock of their own.
    """

    pools: tuple[Pool, ...]
    router: RouterLike = "least_loaded"
    dynamics: Dynamics | None = None
    disaggregation: Disaggregation | None = None
    sharing: Sharing | None = None
    front_end: FrontEnd = NO_FRONT_END

    @classmethod
    def alike(
        cls,
        config: SchedulerConfig,
        step_time: StepTimeModel,
        num_replicas: int = 1,
        router: RouterLike = "least_loaded",
        *,
        dynamics: Dynamics | None = None,
        start_up_s: float = 0.0,
        modes: Modes = PLAIN,
        lock_step: LockStepRules | None = None,
    ) -> Self:
        """One pool; with `lock_step` of one server, whose balancer is the router."""
        server = ServerPlan(num_replicas, lock_step, router) if lock_step else None
        return cls((Pool(config, step_time, num_replicas, start_up_s, modes=modes, server=server),), router, dynamics)

    @property
    def pool_of(self) -> tuple[int, ...]:
        """The number of each replica's pool."""
        return tuple(number for number, pool in enumerate(self.pools) for _ in range(pool.num_replicas))

    @property
    def num_replicas(self) -> int:
        return sum(pool.num_replicas for pool in self.pools)

    @property
    def has_servers(self) -> bool:
        """Whether some replicas are the engines of a server."""
        return any(pool.server for pool in self.pools)

    @property
    def servers(self) -> list[tuple[int, range]]:
        """The number of each server's pool, and those of its replicas."""
        found: list[tuple[int, range]] = []
        first = 0
        for number, pool in enumerate(self.pools):
            size, end = pool.engines_per_server, first + pool.num_replicas
            found += [(number, range(start, start + size)) for start in range(first, end, size)]
            first = end
        return found

    @property
    def address_pools(self) -> list[int]:
        """The number of each address's pool."""
        return [pool for pool, _ in self.servers for _ in self.pools[pool].behind_addresses]

    @property
    def server_of(self) -> tuple[int, ...]:
        """The number of each replica's server, where there are several and one has several replicas."""
        if not self.has_servers or len(self.servers) == 1:
            return ()
        return tuple(number for number, (_, replicas) in enumerate(self.servers) for _ in replicas)

    @property
    def configs(self) -> tuple[SchedulerConfig, ...]:
        """Of each pool."""
        return tuple(pool.config for pool in self.pools)

    @property
    def answering(self) -> tuple[int, ...]:
        """The numbers of the pools that answer requests; the others compute prompts for them."""
        return tuple(number for number, pool in enumerate(self.pools) if pool.role != "prefill")

    def source(self, trace: Trace) -> RequestSource:
        """A trace's requests, for these pools."""
        slots_ahead = [pool.num_slots_ahead for pool in self.pools]
        hash_lookahead = [
            pool.modes.num_hash_lookahead_tokens if pool.role == "both" and not self.sharing else 0
            for pool in self.pools
        ]  # who hands KV on has a connector
        return RequestSource(
            trace, *self.configs, answering=self.answering, slots_ahead=slots_ahead, hash_lookahead=hash_lookahead
        )
