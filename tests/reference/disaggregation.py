"""Naive replicas that prefill for others that decode: each request's KV is pulled over the network.

A request goes to a decode replica. Where much of its prompt is missing there, it is first sent to a prefill replica, which
generates one token and keeps the KV until it has been pulled; that token is thrown away, and the decode replica gets the request.
A replica is an address; behind that of a server of several engines the server's balancer chooses one as a request, or a prompt, comes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, NamedTuple

import numpy as np
import simpy

from sim.cluster.kv_store import StoreSharing
from sim.cluster.network import Network, NetworkCosts
from sim.cluster.options import named
from sim.engine.config import SchedulerConfig
from sim.memory.transfers import ReplicaKV
from sim.steptime.protocol import StepTimeModel
from sim.workload.trace import Trace
from tests.reference import kv_store
from tests.reference.arrivals import ANSWERED, TRANSFER, Due, arrivals
from tests.reference.cluster import Gateway
from tests.reference.connector import Connector, Job, Remote, handed_over
from tests.reference.front_door import let_in, make_requests
from tests.reference.handing_ranks import HandingRanks
from tests.reference.kv_cache import KVCacheManager
from tests.reference.modes import Loras, Modes, Offload, Script, Speculation, Transfers
from tests.reference.multi_connector import in_one, remote_of
from tests.reference.recorder import Recorder
from tests.reference.replica import Process, Replica
from tests.reference.request import Request
from tests.reference.routers import ROUTERS, Router
from tests.reference.servers import Address, balancer_of

NIXL = Transfers("nixl", "kv_both", reports_at_start=True)


@dataclass(frozen=True)
class ServerKind:
    """So many engines, which step together if there are `rules`; behind each address so many, with a `balancer` between them."""

    num_engines: int
    per_address: int
    balancer: str = "vllm_dp"
    rules: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Pool:
    """Equal replicas of one role, or servers of several engines, and the KV cache of each engine; `scripts` are what becomes of drafts, by row."""

    config: SchedulerConfig
    step_time: StepTimeModel
    kv: ReplicaKV
    num_replicas: int
    router: str = "round_robin"
    speculation: Speculation | None = None
    scripts: Sequence[Script] | None = None
    loras: Loras | None = None
    server: ServerKind | None = None
    offload: Offload | None = None

    @property
    def num_engines(self) -> int:
        return self.num_replicas * (self.server.num_engines if self.server else 1)

    @property
    def behind_address(self) -> int:
        """So many engines."""
        return self.server.per_address if self.server else 1

    def modes(self, transfers: Transfers, idle_sleep_s: float) -> Modes:
        """Of each replica."""
        depth = self.config.num_batches_in_flight
        return Modes(depth, self.speculation, loras=self.loras, transfers=transfers, idle_sleep_s=idle_sleep_s)

    def num_handed_over(self, request: Request) -> int:
        """Tokens of its prompt that are prefilled for it elsewhere."""
        num_never_kept = self.speculation.unfinished_tokens if self.speculation else 0
        return handed_over(request.num_prompt_tokens, max(num_never_kept, self.config.num_tokens_left_to_decode))


@dataclass
class Pull:
    """What became of one request's KV, between two engines by their places in their pools, of which the second is known in time."""

    prefill_engine: int
    decode_address: int
    decode_engine: int = -1
    prefill_end_s: float = 0.0
    start_s: float = 0.0
    end_s: float = 0.0
    num_bytes: int = 0


@dataclass
class Disaggregated:
    """The requests as decode engines served them and which one did, the pulls of those that were prefilled elsewhere, by row, and ranks that step together."""

    requests: list[Request]
    pulls: dict[int, Pull] = field(default_factory=dict)
    engine: dict[int, int] = field(default_factory=dict)
    ranks: list[HandingRanks] = field(default_factory=list)


class Pulled(Remote):
    """A connector whose pulls last as long as the network takes, and which keeps what it sends until it is told."""

    def __init__(self, cluster: "Cluster", config: SchedulerConfig, kv: KVCacheManager) -> None:
        super().__init__(NIXL, kv, config)
        self._cluster = cluster

    def begin(self, start_s: float) -> float:
        asked = self._asked
        super().begin(start_s)
        for job in asked:
            job.end_s = None
            self._cluster.env.process(self._cluster.pull(job, start_s))
        return start_s

    def finished(self, request: Request) -> bool:
        if not request.script.is_sent_on:
            return False
        self._under_way.append(Job(request, "send"))
        return True

    def has_all(self, request: Request) -> None:
        request.has_asked_remote = True
        self._cluster.has_all(request)

    def sent(self, row: int) -> None:
        """The other side has it all."""
        next(job for job in self._under_way if job.request.index == row).end_s = self._cluster.env.now


def prefills_of(
    trace: Trace, config: SchedulerConfig, interned: dict[tuple[object, ...], int] | None = None
) -> list[Request]:
    """What is asked of those who prefill: one token."""
    of_one_token = replace(trace, output_tokens=np.ones_like(trace.output_tokens))
    return make_requests(of_one_token, config, [Script(is_sent_on=True)] * len(trace), interned=interned)


class Side(NamedTuple):
    """The engines of a pool, and its addresses, each with so many of them behind it."""

    engines: Sequence[Any]
    addresses: Sequence[Any]
    size: int

    def submit(self, request: Request, address: int) -> int:
        """The engine that gets a request which is sent there."""
        there = self.addresses[address]
        there.submit(request)
        return self.size * address + (there.gateway.chosen[request.index] if self.size > 1 else 0)


class Cluster:
    """Both pools, and each request's way through them."""

    def __init__(
        self,
        env: simpy.Environment,
        trace: Trace,
        pools: tuple[Pool, Pool],
        costs: NetworkCosts,
        least: int,
        idle_sleep_s: float,
        sharing: StoreSharing | None,
    ) -> None:
        self.env = env
        self._pools = pools
        self._least_uncached_tokens = least
        self._done: list[int] = []
        self._idle_sleep_s = idle_sleep_s
        self._network = Network(env, costs)
        for pool in pools:
            for _ in range(pool.num_engines):
                self._network.add(pool.kv.num_gpus)
        first = pools[0]
        self._store = kv_store.Cluster(env, first.config, sharing, first.kv, beside=self._network) if sharing else None
        interned: dict[tuple[object, ...], int] = {}
        self._prefills = prefills_of(trace, pools[0].config, interned)
        for request in self._prefills:
            request.num_prompt_tokens = pools[1].num_handed_over(request)
        self.served = Disaggregated(make_requests(trace, pools[1].config, pools[1].scripts, interned=interned))
        self._routers = [_router(pool, trace) for pool in pools]
        self._gateways: list[Gateway] = []
        self._prefill = self._made(pools[0], trace, 0)
        self._decode = self._made(pools[1], trace, pools[0].num_engines)

    def _made(self, pool: Pool, trace: Trace, first: int) -> "Side":
        """The servers of a pool, whose engines have numbers from the first one's on."""
        engines: list[Any] = []
        for _ in range(pool.num_replicas):
            engines += self._server(pool, first + len(engines))
        for number, engine in enumerate(engines, first):
            engine.scheduler.connector = self._connector(pool, number, engine.scheduler.kv)
        size = pool.behind_address
        if size == 1:
            return Side(engines, engines, 1)
        assert pool.server is not None, "several engines"
        addresses = []
        for place in range(0, len(engines), size):
            balancer = balancer_of(pool.server.balancer, trace, pool.config, size)
            gateway = Gateway(self.env, balancer, len(let_in(self.served.requests)), None)
            addresses.append(Address(gateway, engines[place : place + size]))
            self._gateways.append(gateway)
            self.env.process(gateway.scrape(balancer.scrape_interval_s or 0.0))
        return Side(engines, addresses, size)

    def _connector(self, pool: Pool, number: int, kv: KVCacheManager) -> Connector:
        remote = Pulled(self, pool.config, kv)
        if self._store is None:
            return in_one(remote, pool.offload, kv, pool.config)
        decodes = number >= self._pools[0].num_engines
        stored = kv_store.Stored(self._store, number, kv, pool.config, is_consumer=decodes)
        return in_one(remote, pool.offload, kv, pool.config, stored)

    def _server(self, pool: Pool, first: int) -> Sequence[Any]:
        modes = pool.modes(NIXL, self._idle_sleep_s)
        count = pool.server.num_engines if pool.server else 1
        if pool.server and pool.server.rules is not None:
            together = HandingRanks(
                self.env, pool.config, pool.step_time, modes, count, self._finished, first=first, **pool.server.rules
            )
            self.env.process(together.run())
            self.served.ranks.append(together)
            return together.ranks
        engines = [
            Replica(
                self.env,
                pool.config,
                pool.step_time,
                Recorder(),
                number=first + rank,
                modes=modes,
                on_finished=self._finished,
            )
            for rank in range(count)
        ]
        for engine in engines:
            self.env.process(engine.run())
        return engines

    def submit(self, request: Request) -> None:
        """A request arrives: its decode replica is chosen first, then whether and where it is prefilled."""
        chosen = self._chosen(1, request, self._decode.addresses)
        num_cached = max(
            engine.scheduler.kv.held_prefix(request).num_tokens for engine in self._decode.addresses[chosen].engines
        )
        prefill = self._prefills[request.index]
        if prefill.rejected or request.num_prompt_tokens - num_cached < self._least_uncached_tokens:
            self.served.engine[request.index] = self._decode.submit(request, chosen)
            return
        there = self._prefill.submit(prefill, self._chosen(0, prefill, self._prefill.addresses))
        self.served.pulls[request.index] = Pull(there, chosen)

    def _chosen(self, pool: int, request: Request, replicas: Sequence[Any]) -> int:
        router = self._routers[pool]
        chosen = router.choose(request, replicas) if len(replicas) > 1 else 0
        router.sent.append((request, chosen))
        return chosen

    def _finished(self, request: Request) -> None:
        """Prefills that end at one instant are handed over when all have, in trace order."""
        if request.script.is_sent_on:
            self._done.append(request.index)
            self.env.process(self._hand_over())
        else:
            for gateway in self._gateways:
                gateway.one_answered()

    def _hand_over(self) -> Process:
        yield Due(self.env, 0, ANSWERED)
        for row in sorted(self._done):
            pull = self.served.pulls[row]
            pull.prefill_end_s = self.env.now
            there = self.served.requests[row]
            there.script = replace(there.script, is_remote=True)
            pull.decode_engine = self.served.engine[row] = self._decode.submit(there, pull.decode_address)
        self._done = []

    def has_all(self, request: Request) -> None:
        """A decode replica asks for nothing: the one that prefilled need not hold it."""
        engine = self._prefill.engines[self.served.pulls[request.index].prefill_engine]
        remote_of(engine.scheduler.connector).sent(request.index)

    def pull(self, job: Job, start_s: float) -> Process:
        """What a decode replica asks for, from when its batch begins."""
        if start_s > self.env.now:
            yield Due(self.env, start_s - self.env.now, TRANSFER)
        pull = self.served.pulls[job.request.index]
        pull.start_s = self.env.now
        num_tokens = self._pools[1].num_handed_over(job.request)
        prefill, decode = (pool.kv for pool in self._pools)
        load = decode.pulled(num_tokens - job.num_tokens, num_tokens, sender_gpus=prefill.num_gpus)
        yield from self._network.pull(pull.prefill_engine, self._pools[0].num_engines + pull.decode_engine, load)
        pull.end_s = job.end_s = self.env.now
        pull.num_bytes = load.num_bytes
        remote_of(self._prefill.engines[pull.prefill_engine].scheduler.connector).sent(job.request.index)


def _router(pool: Pool, trace: Trace) -> Router:
    name, options = named("router", pool.router)
    num_addresses = pool.num_engines // pool.behind_address
    return ROUTERS[name](trace, pool.config, num_addresses, Random(0), options)  # noqa: S311


def simulate_disaggregated(
    trace: Trace,
    prefill: Pool,
    decode: Pool,
    costs: NetworkCosts,
    *,
    least_uncached_tokens: int = 1,
    idle_sleep_s: float = 0.001,
    sharing: StoreSharing | None = None,
) -> Disaggregated:
    """Every step of every replica of both pools."""
    env = simpy.Environment(initial_time=min(0.0, float(trace.arrival_s[0])))
    cluster = Cluster(env, trace, (prefill, decode), costs, least_uncached_tokens, idle_sleep_s, sharing)
    env.process(arrivals(env, let_in(cluster.served.requests), cluster))
    env.run()
    return cluster.served
