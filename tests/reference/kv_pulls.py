"""Naive replicas that pull prefixes from each other: the gateway names who has most of a prompt, the chosen replica pulls it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

import simpy

from sim.cluster.kv_pulls import PullSharing
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
from tests.reference.multi_connector import in_one, tier_of
from tests.reference.replica import Process, Replica
from tests.reference.request import Request
from tests.reference.routers import ROUTERS, Router


@dataclass(eq=False)
class Pull:
    """Who has so many tokens of a request, and who pulls them; `stage` is named, pulling, here (in the receiver's host memory at least) or over.

    `is_lost`: the source is not there any more. `has_arrived`: at the receiver's GPU.
    """

    source: int
    num_tokens: int
    receiver: int
    stage: str = "named"
    is_lost: bool = False
    has_arrived: bool = False
    process: simpy.Process | None = None


class PullingGateway(Gateway):
    """Each request is told of to the cluster before it is sent."""

    def __init__(self, env: simpy.Environment, router: Router, num_unanswered: int) -> None:
        super().__init__(env, router, num_unanswered, None)
        self.cluster: Cluster | None = None

    def submit(self, request: Request) -> None:
        assert self.cluster
        number = self.router.choose(request, self.replicas) if len(self.replicas) > 1 else 0
        loads = [replica.load for replica in self.replicas]
        self.cluster.name_source(request, number, dict(enumerate(self.replicas)), dict(enumerate(loads)))
        self.chosen[request.index] = number
        self.router.sent.append((request, number))
        self.replicas[number].submit(request)


class Pulled(Remote):
    """A connector whose loads last as long as the network takes."""

    def __init__(self, cluster: "Cluster", kv: KVCacheManager, config: SchedulerConfig) -> None:
        super().__init__(cluster.transfers, kv, config)
        self._cluster = cluster

    def find(self, request: Request, hit: PrefixHit) -> int | None:
        pull = self._cluster.pulls.get(request)
        if pull is None or request.has_asked_remote or request.num_preemptions:
            return 0
        count = pull.num_tokens - hit.num_tokens
        return count if count >= self._cluster.threshold else 0

    def begin(self, start_s: float) -> float:
        asked = self._asked
        super().begin(start_s)
        for job in asked:
            job.end_s = None
            pull = self._cluster.pulls[job.request]
            pull.stage = "pulling"
            pull.process = self._cluster.env.process(self._cluster.pull(pull, job, start_s))
        return start_s

    def finished(self, request: Request) -> bool:  # noqa: ARG002 - a connector's interface
        return False


class Cluster:
    """The network, and who has what of each request; the `latest` attempt at it, by row."""

    def __init__(self, env: simpy.Environment, sharing: PullSharing, kv: ReplicaKV, num_replicas: int) -> None:
        self.env = env
        self.pulls: dict[Request, Pull] = {}
        self.latest: dict[int, Request] = {}
        self.threshold = max(1, sharing.options.kv_recompute_threshold)
        recomputes = sharing.kv_load_failure_policy == "recompute"
        self.transfers = Transfers("nixl", "kv_consumer", reports_at_start=True, recomputes_failed=recomputes)
        self.network = Network(env, sharing.costs)
        self._sharing, self._kv = sharing, kv
        self._via_host = sharing.options.via == "host"
        for _ in range(num_replicas):
            self.network.add(kv.num_gpus)

    def name_source(
        self,
        request: Request,
        number: int,
        replicas: Mapping[int, Replica],
        loads: Mapping[int, tuple[int, int]],
        lost: Sequence[int] = (),
    ) -> None:
        """The replica with the longest cached prefix, the one with the shorter queue of two; some are `lost` and seem to be there."""
        self.latest[request.index] = request
        held = {other: self.num_held(request, replica) for other, replica in replicas.items()}
        others = [other for other in held if other != number]
        if others:
            source = max(others, key=lambda other: (held[other], -loads[other][0], -other))
            if held[source] - held[number] >= self.threshold:
                self.pulls[request] = Pull(source, held[source], number, is_lost=source in lost)

    def num_held(self, request: Request, replica: Replica) -> int:
        """Tokens in its cache, and from host to host those behind them in its tier."""
        hit, tier = replica.scheduler.kv.held_prefix(request), tier_of(replica.scheduler.connector)
        return hit.num_tokens + (tier.num_stored_behind(request, hit) if self._via_host and tier else 0)

    def pull(self, pull: Pull, job: Job, start_s: float) -> Process:
        try:
            if start_s > self.env.now:
                yield Due(self.env, start_s - self.env.now, TRANSFER)
            if not pull.is_lost:
                yield from self.moved(pull, job)
        except simpy.Interrupt:
            if pull.stage == "over":
                return
        if pull.is_lost:
            job.request.script = replace(job.request.script, recv_fails=True)
        job.end_s, pull.stage = self.env.now, "over"

    def moved(self, pull: Pull, job: Job) -> Process:
        num_local = pull.num_tokens - job.num_tokens
        if self._via_host:
            load = self._kv.pulled_from_host(num_local, pull.num_tokens)
        else:
            load = self._kv.pulled(num_local, pull.num_tokens, sender_gpus=self._kv.num_gpus)
        yield from self.network.pull(pull.source, pull.receiver, load)
        pull.stage = "here"
        if self._via_host and load.num_bytes:
            yield Due(self.env, load.num_bytes / self._kv.num_gpus / self._sharing.host_bytes_per_s, TRANSFER)
        pull.has_arrived = True

    def lose(self, number: int) -> None:
        """A replica is no longer there, whose own pulls are over."""
        for pull in self.pulls.values():
            if pull.receiver == number and pull.stage != "over":
                was_pulling, pull.stage = pull.stage != "named", "over"
                if was_pulling and pull.process:
                    pull.process.interrupt()
        self.lose_source(number)
        self.network.forget(number)

    def lose_source(self, number: int) -> None:
        for pull in self.pulls.values():
            if pull.source == number and pull.stage in {"named", "pulling"}:
                pull.is_lost = True
                if pull.stage == "pulling" and pull.process:
                    pull.process.interrupt()


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
    gateway = PullingGateway(env, chooser, len(let_in(requests)))
    gateway.cluster = cluster = Cluster(env, sharing, kv, num_replicas)
    modes = Modes(
        config.num_batches_in_flight,
        transfers=cluster.transfers,
        idle_sleep_s=idle_sleep_s,
        speculation=speculation,
    )

    def connector(replica: Replica) -> Connector:
        kv = replica.scheduler.kv
        return in_one(Pulled(cluster, kv, config), offload, kv, config)

    served = serve(env, config, step_time, requests, gateway, modes, num_replicas, connector)
    return served, {request.index: pull for request, pull in cluster.pulls.items()}
