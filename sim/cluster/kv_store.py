"""A store of KV that all replicas share: what it holds, and what goes there and back over its link.

After LMCache's and Mooncake's stores: one pool of chunks, the least recently used of which make room; what is being loaded stays.
Deliberate differences: chunks go as a whole and by themselves, at a time of their own each; all replicas see at once what has come; a replica that is
given back still stores what it has computed.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import simpy

from sim.cluster.arrivals import Process
from sim.cluster.clock import TRANSFER, At
from sim.cluster.engine_role import Engine, Role
from sim.cluster.handover_records import uses_of
from sim.cluster.network import Network, NetworkCosts
from sim.cluster.options import option
from sim.cluster.replica import Replica
from sim.cluster.shared_records import StoreRecords
from sim.engine.request import Request
from sim.engine.walking.modes import Modes
from sim.engine.walking.stored import Moved
from sim.memory.transfers import Load, ReplicaKV
from sim.units import GIB, GIGA, MS, US

CHUNK_TOKENS = 256


@dataclass(frozen=True)
class StoreOptions:
    """Its size and bandwidth, each way and of all replicas together; what a lookup takes, and a chunk beside its bytes.

    A `lookup` holds up the pass that makes it (`sync`, vLLM's default), or its request is passed over until it is answered (`async`).

    Fewer than `min_retrieve_tokens` are computed, not loaded. A chunk of 256 tokens and 0 of these are LMCache's defaults; of several KV groups a chunk
    is a block of one, as for vLLM's MooncakeStoreConnector. With `save_decode_cache` what is answered is stored as well. The times are round numbers of one
    exchange over a network.
    """

    capacity_gib: float = option(1024.0, at_least=1e-3)
    bandwidth_gb_s: float = option(50.0, at_least=1e-3)
    lookup: str = option("sync", choices=("sync", "async"))
    lookup_ms: float = option(1.0, at_least=0, at_most=60_000)
    chunk_us: float = option(100.0, at_least=0, at_most=1e6)
    chunk_tokens: int | None = option(None, kind=int, at_least=1)
    min_retrieve_tokens: int = option(0, at_least=0)
    save_decode_cache: bool = option(False)

    def chunk_blocks(self, kv: ReplicaKV, block_size: int) -> int:
        """Of a KV cache's chunks."""
        if self.chunk_tokens is not None:
            return self.chunk_tokens // block_size
        return 1 if kv.is_stored_by_block else max(1, CHUNK_TOKENS // block_size)

    def num_chunks(self, kv: ReplicaKV, block_size: int) -> int:
        """As many as there is room for."""
        return int(self.capacity_gib * GIB) // (self.chunk_blocks(kv, block_size) * kv.bytes_per_block)


@dataclass(frozen=True)
class StoreSharing:
    """A store that replicas reach by their GPUs' cards, of so many bytes/s each way."""

    options: StoreOptions
    card_bytes_per_s: float

    @property
    def costs(self) -> NetworkCosts:
        """Of what goes between it and the replicas."""
        return NetworkCosts(self.card_bytes_per_s, latency_s=0.0, descriptor_s=self.options.chunk_us * US)

    def over(
        self,
        network: Network,
        kvs: Sequence[ReplicaKV],
        block_size: int,
        num_requests: int,  # noqa: ARG002 - a means of sharing
    ) -> "KVStore":
        """All KV caches are alike."""
        return KVStore(self.options, network.at(self.costs), kvs[0], block_size)


class StoredChunk:
    """Ready once it has come; it stays while a replica loads it."""

    def __init__(self) -> None:
        self.is_ready = False
        self.num_users = 0


class KVStore:
    """Chunks in order of last use, the least recent first."""

    def __init__(self, options: StoreOptions, network: Network, kv: ReplicaKV, block_size: int) -> None:
        """Of replicas that the network has already."""
        self.chunk_blocks = options.chunk_blocks(kv, block_size)
        self.block_bytes = kv.bytes_per_block
        self.lookup_s = options.lookup_ms * MS
        self.holds_up_passes = options.lookup == "sync"
        self.least_tokens = options.min_retrieve_tokens
        self.saves_decodes = options.save_decode_cache
        self.num_chunks = options.num_chunks(kv, block_size)
        self.most_chunks = 0
        self.num_evictions = 0
        self._network = network
        self._number = network.add_node(options.bandwidth_gb_s * GIGA)
        self._chunks: dict[int, StoredChunk] = {}
        self._moves: dict[int, dict[Moved, simpy.Process]] = defaultdict(dict)
        self.engines: dict[int, Engine] = {}

    @property
    def now_s(self) -> float:
        """By the run's clock."""
        return self._network.env.now

    def modes_of(self, modes: Modes, number: int, role: Role) -> Modes:
        return replace(modes, store=ReplicaStore(self, number, role))

    def sent(self, request: Request, chosen: Replica, all_there: Iterable[Replica]) -> None:
        """Its engine asks for what is there."""

    def failed_at(self, request: Request) -> int | None:  # noqa: ARG002 - shared KV's interface
        """Nobody fails for what the store has."""
        return None

    def lost(self, number: int) -> None:
        for move in self._moves[number].values():
            move.interrupt()

    def gone(self, number: int) -> None:
        """What it stores still comes."""

    def records(self) -> StoreRecords:
        chunk_bytes = self.chunk_blocks * self.block_bytes
        ports = uses_of(self._network.ports)
        return StoreRecords(self.num_chunks, self.most_chunks, self.num_evictions, chunk_bytes, ports)

    def has(self, key: int) -> bool:
        """Whether it is there, and has come."""
        chunk = self._chunks.get(key)
        return chunk is not None and chunk.is_ready

    def offer(self, keys: Sequence[int]) -> list[int]:
        """Make room for those that are not there, the first first; who is there is used."""
        new = [key for key in keys if key not in self._chunks]
        kept = set(keys)
        idle = (
            key for key, chunk in self._chunks.items() if chunk.is_ready and not chunk.num_users and key not in kept
        )
        num_free = self.num_chunks - len(self._chunks)
        evicted = [key for key, _ in zip(idle, range(len(new) - num_free), strict=False)]
        for key in evicted:
            del self._chunks[key]
        self.num_evictions += len(evicted)
        taken = new[: num_free + len(evicted)]
        self._chunks.update((key, StoredChunk()) for key in taken)
        self.renew(keys)
        self.most_chunks = max(self.most_chunks, len(self._chunks))
        return taken

    def renew(self, keys: Sequence[int]) -> None:
        """They are used: a prompt's head ends up as the most recent."""
        for key in reversed(keys):
            if key in self._chunks:
                self._chunks[key] = self._chunks.pop(key)

    def keep(self, keys: Sequence[int]) -> None:
        """They stay until a load of them is over."""
        for key in keys:
            self._chunks[key].num_users += 1

    def begin(self, moved: Moved, replica: int) -> None:
        """A load or a store begins at its start; what is stored can be loaded when it has come."""
        self._moves[replica][moved] = self._network.env.process(self._move(moved, replica))

    def drop(self, moved: Moved) -> None:
        """What was to be loaded may go, and what was to come has no room any more."""
        for key in moved.keys:
            chunk = self._chunks[key]
            if chunk.is_ready:
                chunk.num_users -= 1
            else:
                del self._chunks[key]

    def _move(self, moved: Moved, replica: int) -> Process:
        try:
            yield from self._load(moved, replica) if moved.kind == "load" else self._store(moved, replica)
        except simpy.Interrupt:
            self.drop(moved)
        finally:
            del self._moves[replica][moved]

    def _load(self, moved: Moved, replica: int) -> Process:
        yield from self._sent(moved, self._number, replica)
        for key in moved.keys:
            self._chunks[key].num_users -= 1
        moved.end_s = self._network.env.now
        self.engines[replica].wake()

    def _store(self, moved: Moved, replica: int) -> Process:
        yield from self._sent(moved, replica, self._number)
        for key in moved.keys:
            self._chunks[key].is_ready = True

    def _sent(self, moved: Moved, sender: int, receiver: int) -> Process:
        env = self._network.env
        if moved.start_s > env.now:
            yield At(env, moved.start_s, TRANSFER)
        yield from self._network.pull(sender, receiver, Load(moved.num_blocks * self.block_bytes, len(moved.keys)))


class ReplicaStore:
    """The store towards one engine. Who decodes what others prefill is vLLM's `kv_consumer`, which stores no prefills of its own; all others are `kv_both`."""

    def __init__(self, store: KVStore, number: int, role: Role) -> None:
        self._store = store
        self._number = number
        self.chunk_blocks = store.chunk_blocks
        self.block_bytes = store.block_bytes
        self.lookup_s = store.lookup_s
        self.holds_up_passes = store.holds_up_passes
        self.least_tokens = store.least_tokens
        self.saves_prefills = role != "decode"
        self.saves_decodes = store.saves_decodes

    @property
    def now_s(self) -> float:
        return self._store.now_s

    def has(self, key: int) -> bool:
        return self._store.has(key)

    def renew(self, keys: Sequence[int]) -> None:
        self._store.renew(keys)

    def offer(self, keys: Sequence[int]) -> Sequence[int]:
        return self._store.offer(keys)

    def keep(self, keys: Sequence[int]) -> None:
        self._store.keep(keys)

    def begin(self, moved: Moved) -> None:
        self._store.begin(moved, self._number)

    def drop(self, moved: Moved) -> None:
        self._store.drop(moved)
