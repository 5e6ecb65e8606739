"""Prefixes that a replica pulls from another one which has them, instead of computing them.

After llm-d's P2P KV cache sharing (its router names a source, from a lead of so many tokens on, and of equal ones that with the shortest queue)
and vLLM's connectors: a transfer is tried once a request, and fewer tokens than `kv_recompute_threshold` are computed
(v1/nixl/pull_scheduler.py, 0.32). Beside a CPU tier an engine asks both, as vLLM's MultiConnector does, and loads from the first that has something: a pull
where one was named, else what its own host has; from host memory a source gives what its tier has behind its cache as well. Deliberate differences: what a
source holds is what it holds when the request arrives, and it still has that when it is asked; both thresholds are one number; no pull fails; and vLLM's own
tier of peers (its TieringOffloadingSpec) leaves what is pulled in host memory, where here it is stored there as what was computed is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import simpy

from sim.cluster.arrivals import Process
from sim.cluster.clock import TRANSFER, At
from sim.cluster.gateway import Gateway
from sim.cluster.handover_records import uses_of
from sim.cluster.network import Network, NetworkCosts
from sim.cluster.options import option
from sim.cluster.replica import LiveReplica, Replica
from sim.cluster.routers.router import Router
from sim.cluster.shared_records import PullRecords
from sim.engine.records import Floats, Ints
from sim.engine.request import Request
from sim.engine.request_source import RequestSource
from sim.engine.walking.connector import Transfer
from sim.engine.walking.modes import Modes
from sim.memory.transfers import Load, ReplicaKV
from sim.specs.kv_transfer import KVTransferConfig

VIA = ("gpu", "host")


@dataclass(frozen=True)
class PullOptions:
    """From how many tokens on a pull is tried, 64 as in vLLM; `via` GPU to GPU (NIXL), or from host memory to host memory and on."""

    kv_recompute_threshold: int = option(64, at_least=0)
    via: str = option("gpu", choices=VIA)

    @property
    def config(self) -> KVTransferConfig:
        """Of each engine; it keeps nothing for others."""
        return KVTransferConfig(
            "kv_consumer", reports_at_start=True, kv_recompute_threshold=self.kv_recompute_threshold
        )


@dataclass(frozen=True)
class PullSharing:
    """Pulls over a network; `host_bytes_per_s` is what a GPU copies from its host."""

    options: PullOptions
    costs: NetworkCosts
    host_bytes_per_s: float

    def over(
        self, env: simpy.Environment, kv: ReplicaKV, block_size: int, num_replicas: int, num_requests: int
    ) -> "Pulls":
        network = Network(env, self.costs, [kv.num_gpus] * num_replicas)
        return Pulls(self, network, kv, block_size, num_requests)


class Pull(NamedTuple):
    """Who has a prefix, how long it is, and who is to pull it."""

    source: int
    num_tokens: int
    receiver: int


class Pulls:
    """The peer of every engine: which prefix can be had from where, and how long it is under way."""

    def __init__(
        self, sharing: PullSharing, network: Network, kv: ReplicaKV, block_size: int, num_requests: int
    ) -> None:
        """Of replicas that the network has already."""
        self._options = sharing.options
        self._host_bytes_per_s = sharing.host_bytes_per_s
        self._network = network
        self._kv = kv
        self._block_size = block_size
        self._replicas: Sequence[LiveReplica] = ()
        self._of: dict[Request, Pull] = {}
        self._table = PullTable(num_requests)

    def gateway(self, env: simpy.Environment, router: Router, source: RequestSource) -> Gateway:
        return PullingGateway(env, router, source, self, self._options, self._block_size)

    def modes_of(self, modes: Modes, number: int) -> Modes:  # noqa: ARG002 - shared KV's interface
        return replace(modes, kv_transfer=self._options.config, peer=self)

    def records(self) -> PullRecords:
        table = self._table
        return PullRecords(
            table.source, table.start_s, table.end_s, table.num_tokens, table.num_bytes, uses_of(self._network.ports)
        )

    def connect(self, replicas: Sequence[LiveReplica]) -> None:
        """These are all there are, by number."""
        self._replicas = replicas

    def add(self, request: Request, pull: Pull) -> None:
        """A request is sent to a replica, which may pull."""
        self._of[request] = pull

    # -- what engines ask, as a Peer -----------------------------------------------------------------------------------

    def num_tokens_elsewhere(self, request: Request) -> int:
        pull = self._of.get(request)
        return pull.num_tokens if pull else 0

    def loads_in_step(self, request: Request) -> bool:  # noqa: ARG002 - a peer's interface
        return False

    def has_all(self, request: Request) -> None:
        """The replica that has it holds nothing for it."""

    def is_sent_on(self, request: Request) -> bool:  # noqa: ARG002 - a peer's interface
        return False

    def begin(self, transfer: Transfer) -> None:
        pull = self._of.pop(transfer.request)
        self._network.env.process(self._pull(pull, transfer))

    def _pull(self, pull: Pull, transfer: Transfer) -> Process:
        env = self._network.env
        if transfer.start_s > env.now:
            yield At(env, transfer.start_s, TRANSFER)
        begun_s = env.now
        load = self._load(pull.num_tokens - transfer.num_tokens, pull.num_tokens)
        yield from self._network.pull(pull.source, pull.receiver, load)
        if self._options.via == "host" and load.num_bytes:
            copied_s = load.num_bytes / self._kv.num_gpus / self._host_bytes_per_s
            yield At(env, env.now + copied_s, TRANSFER)
        transfer.end_s = env.now
        self._replicas[pull.receiver].wake()
        self._table.write(transfer, pull.source, begun_s, load.num_bytes)

    def _load(self, num_local_tokens: int, num_tokens: int) -> Load:
        if self._options.via == "host":
            return self._kv.pulled_from_host(num_local_tokens, num_tokens)
        return self._kv.pulled(num_local_tokens, num_tokens, sender_gpus=self._kv.num_gpus)


class PullTable:
    """From whom each request's prefix was pulled, when, and how much; -1, NaN and 0 where none was."""

    def __init__(self, num_requests: int) -> None:
        self.source: Ints = np.full(num_requests, -1)
        self.start_s: Floats = np.full(num_requests, np.nan)
        self.end_s: Floats = np.full(num_requests, np.nan)
        self.num_tokens: Ints = np.zeros(num_requests, dtype=np.int64)
        self.num_bytes: Ints = np.zeros(num_requests, dtype=np.int64)

    def write(self, transfer: Transfer, source: int, start_s: float, num_bytes: int) -> None:
        row = transfer.request.index
        self.source[row], self.start_s[row], self.end_s[row] = source, start_s, transfer.end_s
        self.num_tokens[row], self.num_bytes[row] = transfer.num_tokens, num_bytes


class PullingGateway(Gateway):
    """Names the replica that has most of a request's prompt, where that is enough more than the chosen one has."""

    def __init__(
        self,
        env: simpy.Environment,
        router: Router,
        source: RequestSource,
        pulls: Pulls,
        options: PullOptions,
        block_size: int,
    ) -> None:
        super().__init__(env, router, unable=source.unable)
        self._pulls = pulls
        self._from_host = options.via == "host"
        self._least_tokens = max(1, options.kv_recompute_threshold)
        self._block_size = block_size

    def send(self, chosen: Replica, *answers: Request) -> None:
        (request,) = answers
        others = [replica for replica in self.replicas if replica is not chosen]
        held = [self._num_held_tokens(replica, request) for replica in others]
        most = max(held, default=0)
        lead = most - self._num_held_tokens(chosen, request) if most else 0
        if lead >= self._least_tokens:
            holders = [replica for replica, num_tokens in zip(others, held, strict=True) if num_tokens == most]
            source = min(holders, key=lambda replica: replica.load[0])
            self._pulls.add(request, Pull(source.number, most, chosen.number))
        chosen.submit(request)

    def _num_held_tokens(self, replica: Replica, request: Request) -> int:
        """What can be had of a prompt from there."""
        num_blocks = replica.num_cached_blocks(request)
        if self._from_host:
            num_blocks += replica.num_offloaded_blocks(request, num_blocks)
        return num_blocks * self._block_size
