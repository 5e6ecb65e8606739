"""Naive replicas that pull prefixes from each other: the gateway names who has most of a prompt, the chosen replica pulls it."""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import simpy

from sim.cluster.kv_pulls import PullOptions, PullSharing
from sim.cluster.network import Network
from sim.cluster.options import named
from sim.engine.config import SchedulerConfig
from sim.memory.transfers import ReplicaKV
from sim.steptime.protocol import StepTimeModel
from sim.workload.trace import Trace
from tests.reference.arrivals import TRANSFER, Due
from tests.reference.cluster import Gateway, Served
from tests.reference.connector import Connector, Job, Remote
from tests.reference.front_door import let_in, make_requests
from tests.reference.kv_cache import KVCacheManager, PrefixHit
from tests.reference.kv_store import serve
from tests.reference.modes import Modes, Offload, Script, Speculation, Transfers
from tests.reference.multi_connector import beside_cpu, tier_of
from tests.reference.replica import Process, Replica
from tests.reference.request import Request
from tests.reference.routers import ROUTERS, Router

CONSUMER = Transfers("nixl", "kv_consumer", reports_at_start=True)


class Pull(NamedTuple):
    """Who has so many tokens of a request, and who pulls them."""

    source: int
    num_tokens: int
    receiver: int


class PullingGateway(Gateway):
    """The replica with the longest cached prefix is named, the one with the shorter queue of two."""

    def __init__(self, env: simpy.Environment, router: Router, num_unanswered: int, options: PullOptions) -> None:
        super().__init__(env, router, num_unanswered, None)
        self._threshold = options.kv_recompute_threshold
        self._from_host = options.via == "host"
        self.pulls: dict[int, Pull] = {}

    def submit(self, request: Request) -> None:
        number = self.router.choose(request, self.replicas) if len(self.replicas) > 1 else 0
        held = [self.num_held(request, replica) for replica in self.replicas]
        others = [other for other in range(len(held)) if other != number]
        if others:
            source = max(others, key=lambda other: (held[other], -self.replicas[other].load[0], -other))
            if held[source] - held[number] >= max(1, self._threshold):
                self.pulls[request.index] = Pull(source, held[source], number)
        self.chosen[request.index] = number
        self.router.sent.append((request, number))
        self.replicas[number].submit(request)

    def num_held(self, request: Request, replica: Replica) -> int:
        """Tokens in its cache, and from host to host those behind them in its tier."""
        hit, tier = replica.scheduler.kv.held_prefix(request), tier_of(replica.scheduler.connector)
        return hit.num_tokens + (tier.num_stored_behind(request, hit) if self._from_host and tier else 0)


class Pulled(Remote):
    """A connector whose loads last as long as the network takes."""

    def __init__(self, cluster: "Cluster", kv: KVCacheManager, config: SchedulerConfig) -> None:
        super().__init__(CONSUMER, kv, config)
        self._cluster = cluster

    def find(self, request: Request, hit: PrefixHit) -> int | None:
        pull = self._cluster.gateway.pulls.get(request.index)
        if pull is None or request.has_asked_remote:
            return 0
        count = pull.num_tokens - hit.num_tokens
        return count if count >= max(1, self._cluster.threshold) else 0

    def begin(self, start_s: float) -> float:
        asked = self._asked
        super().begin(start_s)
        for job in asked:
            job.end_s = None
            self._cluster.env.process(self._cluster.pull(job, start_s))
        return start_s

    def finished(self, request: Request) -> bool:  # noqa: ARG002 - a connector's interface
        return False


class Cluster:
    """The network, and the gateway that knows who has what."""

    def __init__(
        self, env: simpy.Environment, sharing: PullSharing, kv: ReplicaKV, gateway: PullingGateway, num_replicas: int
    ) -> None:
        self.env, self.gateway = env, gateway
        self.threshold = sharing.options.kv_recompute_threshold
        self._sharing, self._kv = sharing, kv
        self._network = Network(env, sharing.costs)
        for _ in range(num_replicas):
            self._network.add(kv.num_gpus)

    def pull(self, job: Job, start_s: float) -> Process:
        if start_s > self.env.now:
            yield Due(self.env, start_s - self.env.now, TRANSFER)
        pull = self.gateway.pulls[job.request.index]
        num_local = pull.num_tokens - job.num_tokens
        via_host = self._sharing.options.via == "host"
        if via_host:
            load = self._kv.pulled_from_host(num_local, pull.num_tokens)
        else:
            load = self._kv.pulled(num_local, pull.num_tokens, sender_gpus=self._kv.num_gpus)
        yield from self._network.pull(pull.source, pull.receiver, load)
        if via_host:
            yield Due(self.env, load.num_bytes / self._kv.num_gpus / self._sharing.host_bytes_per_s, TRANSFER)
        job.end_s = self.env.now


def simulate_pulls(
    trace: Trace,
    config: SchedulerConfig,
    step_time: StepTimeModel,
    sharing: PullSharing,
    kv: ReplicaKV,
    *,
    num_replicas: int,
    router: str,
    idle_sleep_s: float,
    speculation: Speculation | None = None,
    scripts: Sequence[Script] | None = None,
    offload: Offload | None = None,
) -> tuple[Served, dict[int, Pull]]:
    """Every step of every replica, and the sources that were named, by row."""
    env = simpy.Environment(initial_time=min(0.0, float(trace.arrival_s[0])))
    requests = make_requests(trace, config, scripts)
    name, given = named("router", router)
    chooser = ROUTERS[name](trace, config, num_replicas, Random(0), given)  # noqa: S311
    gateway = PullingGateway(env, chooser, len(let_in(requests)), sharing.options)
    cluster = Cluster(env, sharing, kv, gateway, num_replicas)
    modes = Modes(config.num_batches_in_flight, transfers=CONSUMER, idle_sleep_s=idle_sleep_s, speculation=speculation)

    def connector(replica: Replica) -> Connector:
        kv = replica.scheduler.kv
        return beside_cpu(Pulled(cluster, kv, config), offload, kv, config)

    return serve(env, config, step_time, requests, gateway, modes, num_replicas, connector), gateway.pulls
