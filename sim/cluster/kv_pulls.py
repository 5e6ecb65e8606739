"""Prefixes that a replica pulls from another one which has them, instead of computing them.

After llm-d's P2P KV cache sharing (its router names a source, from a lead of so many tokens on, and of equal ones that with the shortest queue)
and vLLM's connectors: a transfer is tried once a request, as it is first admitted, and fewer tokens than `kv_recompute_threshold` are computed
(v1/nixl/pull_scheduler.py, 0.32). Beside a CPU tier an engine asks both, as vLLM's MultiConnector does, and loads from the first that has something: a pull
where one was named, else what its own host has; from host memory a source gives what its tier has behind its cache as well. Deliberate differences: what a
source holds is what it holds when the request arrives, and it still has that when it is asked; both thresholds are one number; and vLLM's own
tier of peers (its TieringOffloadingSpec) leaves what is pulled in host memory, where here it is stored there as what was computed is.

A pull fails where its source is lost or given back before all has come. As in vLLM, the request then ends, or computes what it lacks, by
`kv_load_failure_policy`; who asks a source that is not there any more is told so at once.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import simpy

from sim.cluster.arrivals import Process
from sim.cluster.clock import TRANSFER, At
from sim.cluster.engine_role import Engine, Role
from sim.cluster.handover_records import uses_of
from sim.cluster.network import Network, NetworkCosts
from sim.cluster.options import option
from sim.cluster.replica import Replica
from sim.cluster.shared_records import PullRecords
from sim.engine.records import Floats, Ints
from sim.engine.request import Request
from sim.engine.walking.connector import Transfer
from sim.engine.walking.modes import Modes
from sim.memory.transfers import Load, ReplicaKV
from sim.specs.kv_transfer import KVTransferConfig, LoadFailurePolicy

VIA = ("gpu", "host")


@dataclass(frozen=True)
class PullOptions:
    """From how many tokens on a pull is tried, 64 as in vLLM; `via` GPU to GPU (NIXL), or from host memory to host memory and on."""

    kv_recompute_threshold: int = option(64, at_least=0)
    via: str = option("gpu", choices=VIA)


@dataclass(frozen=True)
class PullSharing:
    """Pulls over a network; `host_bytes_per_s` is what a GPU copies from its host."""

    options: PullOptions
    costs: NetworkCosts
    host_bytes_per_s: float
    kv_load_failure_policy: LoadFailurePolicy = "fail"

    @property
    def config(self) -> KVTransferConfig:
        """Of each engine; it keeps nothing for others."""
        return KVTransferConfig(
            "kv_consumer",
            reports_at_start=True,
            kv_recompute_threshold=self.options.kv_recompute_threshold,
            kv_load_failure_policy=self.kv_load_failure_policy,
        )

    def over(self, network: Network, kvs: Sequence[ReplicaKV], block_size: int, num_requests: int) -> "Pulls":
        return Pulls(self, network.at(self.costs), kvs, block_size, num_requests)


class Pull:
    """Who has a prefix, how long it is, and who is to pull it; `process` is there once the receiver has asked for it.

    `is_lost`: its source is not there any more, with what had not come by then. `is_dropped`: its receiver is not.
    """

    def __init__(self, source: int, num_tokens: int, receiver: int) -> None:
        self.source = source
        self.num_tokens = num_tokens
        self.receiver = receiver
        self.process: simpy.Process | None = None
        self.is_lost = False
        self.is_dropped = False
        self.has_come = False


class Pulls:
    """The peer of every engine: which prefix can be had from where, and how long it is under way.

    The replica that has most of a request's prompt is named as it is sent, where that is enough more than the chosen one has.
    """

    def __init__(
        self,
        sharing: PullSharing,
        network: Network,
        kvs: Sequence[ReplicaKV],
        block_size: int,
        num_requests: int,
    ) -> None:
        """Of replicas that the network has already."""
        self._sharing = sharing
        self._from_host = sharing.options.via == "host"
        self._least_tokens = max(1, sharing.options.kv_recompute_threshold)
        self._network = network
        self._kvs = kvs
        self._block_size = block_size
        self._of: dict[Request, Pull] = {}
        self._failed: dict[Request, int] = {}
        self._table = PullTable(num_requests)
        self.engines: dict[int, Engine] = {}

    def modes_of(self, modes: Modes, number: int, role: Role) -> Modes:  # noqa: ARG002 - shared KV's interface
        return replace(modes, kv_transfer=self._sharing.config, peer=self)

    def records(self) -> PullRecords:
        table = self._table
        return PullRecords(
            table.source, table.start_s, table.end_s, table.num_tokens, table.num_bytes, uses_of(self._network.ports)
        )

    # -- who has what ------------------------------------------------------------------------------------------------

    def sent(self, request: Request, chosen: Replica, all_there: Iterable[Replica]) -> None:
        self._table.clear(request.index)
        others = [replica for replica in all_there if replica is not chosen]
        held = [self._num_held_tokens(replica, request) for replica in others]
        most = max(held, default=0)
        lead = most - self._num_held_tokens(chosen, request) if most else 0
        if lead >= self._least_tokens:
            holders = [replica for replica, num_tokens in zip(others, held, strict=True) if num_tokens == most]
            source = min(holders, key=lambda replica: replica.load[0])
            self._of[request] = pull = Pull(source.number, most, chosen.number)
            there: object = self.engines.get(source.number)
            pull.is_lost = there is not source  # and nobody has noticed yet

    def _num_held_tokens(self, replica: Replica, request: Request) -> int:
        """What can be had of a prompt from there."""
        num_blocks = replica.num_cached_blocks(request)
        if self._from_host:
            num_blocks += replica.num_offloaded_blocks(request, num_blocks)
        return num_blocks * self._block_size

    def lost(self, number: int) -> None:
        for request, pull in list(self._of.items()):
            if pull.receiver == number:
                self._drop(request, pull)
        self.engines.pop(number, None)
        self.gone(number)
        self._network.forget(number)

    def gone(self, number: int) -> None:
        for pull in self._of.values():
            if pull.source == number and not pull.has_come:
                pull.is_lost = True
                if pull.process is not None:
                    pull.process.interrupt()

    def _drop(self, request: Request, pull: Pull) -> None:
        pull.is_dropped = True
        del self._of[request]
        if pull.process is not None:
            pull.process.interrupt()

    def failed_at(self, request: Request) -> int | None:
        return self._failed.pop(request, None)

    # -- what engines ask, as a Peer -----------------------------------------------------------------------------------

    def num_tokens_elsewhere(self, request: Request) -> int:
        """As the request is first admitted; a preempted one computes what it lacks."""
        pull = self._of.get(request)
        return pull.num_tokens if pull and pull.process is None and not request.num_preemptions else 0

    def loads_in_step(self, request: Request) -> bool:  # noqa: ARG002 - a peer's interface
        return False

    def has_all(self, request: Request) -> None:
        """The replica that has it holds nothing for it."""

    def is_sent_on(self, request: Request) -> bool:  # noqa: ARG002 - a peer's interface
        return False

    def begin(self, transfer: Transfer) -> None:
        pull = self._of[transfer.request]
        pull.process = self._network.env.process(self._pull(pull, transfer))

    def _pull(self, pull: Pull, transfer: Transfer) -> Process:
        env = self._network.env
        with suppress(simpy.Interrupt):  # one of the two is not there any more
            if transfer.start_s > env.now or pull.is_lost:  # the batch that asks does not tell of it
                yield At(env, transfer.start_s, TRANSFER)
            if not pull.is_lost:
                yield from self._move(pull, transfer)
        if pull.is_dropped:
            return
        if pull.is_lost:
            self._fail(pull, transfer)
        transfer.end_s = env.now
        del self._of[transfer.request]
        self.engines[pull.receiver].wake()

    def _move(self, pull: Pull, transfer: Transfer) -> Process:
        env = self._network.env
        begun_s = env.now
        load = self._load(pull, pull.num_tokens - transfer.num_tokens)
        yield from self._network.pull(pull.source, pull.receiver, load)
        pull.has_come = True
        if self._from_host and load.num_bytes:
            copied_s = load.num_bytes / self._kvs[pull.receiver].num_gpus / self._sharing.host_bytes_per_s
            yield At(env, env.now + copied_s, TRANSFER)
        self._table.write(transfer, pull.source, begun_s, env.now, load.num_bytes)

    def _load(self, pull: Pull, num_local_tokens: int) -> Load:
        own = self._kvs[pull.receiver]
        if self._from_host:
            return own.pulled_from_host(num_local_tokens, pull.num_tokens)
        return own.pulled(num_local_tokens, pull.num_tokens, sender_gpus=self._kvs[pull.source].num_gpus)

    def _fail(self, pull: Pull, transfer: Transfer) -> None:
        transfer.has_failed = True
        if self._sharing.kv_load_failure_policy == "fail":
            self._failed[transfer.request] = pull.receiver


class PullTable:
    """From whom each request's prefix was pulled, when, and how much; -1, NaN and 0 where none was."""

    def __init__(self, num_requests: int) -> None:
        self.source: Ints = np.full(num_requests, -1)
        self.start_s: Floats = np.full(num_requests, np.nan)
        self.end_s: Floats = np.full(num_requests, np.nan)
        self.num_tokens: Ints = np.zeros(num_requests, dtype=np.int64)
        self.num_bytes: Ints = np.zeros(num_requests, dtype=np.int64)

    def write(self, transfer: Transfer, source: int, start_s: float, end_s: float, num_bytes: int) -> None:
        row = transfer.request.index
        self.source[row], self.start_s[row], self.end_s[row] = source, start_s, end_s
        self.num_tokens[row], self.num_bytes[row] = transfer.num_tokens, num_bytes

    def clear(self, row: int) -> None:
        """What an attempt before has pulled is told no more."""
        if self.source[row] >= 0:
            self.source[row], self.start_s[row], self.end_s[row] = -1, np.nan, np.nan
            self.num_tokens[row], self.num_bytes[row] = 0, 0
