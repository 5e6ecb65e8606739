"""Naive replicas that share a store of KV: each looks prompts up there, loads prefixes from it and stores what it prefills, or decodes as well."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import simpy

from sim.cluster.kv_store import StoreSharing
from sim.cluster.network import Network
from sim.cluster.options import named
from sim.engine.config import SchedulerConfig
from sim.memory.transfers import Load, ReplicaKV
from sim.steptime.protocol import StepTimeModel
from sim.workload.trace import Trace
from tests.reference.arrivals import TRANSFER, Due, arrivals
from tests.reference.blocks import NULL_BLOCK
from tests.reference.cluster import Gateway, Served
from tests.reference.connector import Connector, Event, Job, StatesKept, over_by
from tests.reference.front_door import answers, let_in, make_requests
from tests.reference.kv_cache import KVCacheManager, PrefixHit
from tests.reference.modes import Modes, Offload, Script, Speculation, Transfers
from tests.reference.multi_connector import in_one
from tests.reference.recorder import Recorder
from tests.reference.replica import Process, Replica
from tests.reference.request import Request
from tests.reference.routers import ROUTERS

Key = tuple[int, int]
"""A KV group and what a chunk of it holds."""


class Store:
    """Chunks from the least to the most recently used one; those on their way, and those that somebody loads."""

    def __init__(self, num_chunks: int) -> None:
        self._room = num_chunks
        self._line: list[Key] = []
        self._coming: list[Key] = []
        self._loading: list[Key] = []

    def has(self, key: Key) -> bool:
        return key in self._line and key not in self._coming

    def offer(self, keys: Sequence[Key]) -> list[Key]:
        """As many of the missing ones as there is or can be made room for."""
        missing = [key for key in keys if key not in self._line]
        taken = []
        for key in missing:
            if len(self._line) == self._room:
                idle = [one for one in self._line if self.has(one) and one not in self._loading and one not in keys]
                if not idle:
                    break
                self._line.remove(idle[0])
            self._line.append(key)
            self._coming.append(key)
            taken.append(key)
        self.use([key for key in keys if key in self._line])
        return taken

    def came(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self._coming.remove(key)

    def load(self, keys: Sequence[Key]) -> None:
        self._loading += keys

    def loaded(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self._loading.remove(key)

    def lost(self, keys: Sequence[Key]) -> None:
        """They will not come."""
        for key in keys:
            self._coming.remove(key)
            self._line.remove(key)

    def use(self, keys: Sequence[Key]) -> None:
        for key in reversed(keys):
            self._line.remove(key)
            self._line.append(key)


class Stored:
    """What one engine asks of the store; a `consumer` stores no prefills."""

    hears_of_allocations = False

    def __init__(
        self,
        cluster: "Cluster",
        number: int,
        kv: KVCacheManager,
        config: SchedulerConfig,
        *,
        is_consumer: bool = False,
    ) -> None:
        self.events: list[Event] = []
        self.now_s = 0.0
        self._cluster, self._number, self._kv = cluster, number, kv
        self._groups = config.kv_groups
        self._leaves_one = cluster.chunk_blocks == 1
        self._chunk_tokens = cluster.chunk_tokens
        self._answer_s: dict[Request, float] = {}
        self.waited_s = 0.0
        self._saves_prefills = not is_consumer
        self._num_prefilled: dict[Request, int] = {}
        self._num_stored: dict[Request, int] = {}
        self._asked: list[Job] = []
        self._offered: list[Job] = []
        self._due: list[Job] = []
        self._under_way: list[Job] = []

    @property
    def has_pending(self) -> bool:
        is_asked = any(answer_s > self.now_s for answer_s in self._answer_s.values())
        return bool(self._asked or self._offered or self._due or self._under_way or is_asked)

    @property
    def brings_states(self) -> bool:
        return False

    @property
    def begins_loads(self) -> bool:
        return bool(self._asked)

    def find(self, request: Request, hit: PrefixHit) -> int | None:
        self._num_prefilled[request] = request.num_tokens
        most = (request.num_tokens - self._leaves_one) // self._chunk_tokens
        if most * self._chunk_tokens <= hit.num_tokens:
            return 0
        if self._cluster.is_sync and request not in self._answer_s:
            self._answer_s[request] = self.now_s
            self.waited_s += self._cluster.lookup_s
        if self.now_s < self._answer_s.setdefault(request, self.now_s + self._cluster.lookup_s):
            return None
        there = most
        while not all(self._cluster.store.has(key) for key in self._needed(request, 0, there)):
            there -= 1
        num_tokens = there * self._chunk_tokens - hit.num_tokens
        return num_tokens if num_tokens >= max(1, self._cluster.least_tokens) else 0

    def _needed(self, request: Request, first: int, end: int) -> list[Key]:
        """What the token behind so many chunks looks at, by group."""
        found = []
        for number, group in enumerate(self._groups):
            seen = end * self._chunk_tokens if group.window is None else group.window - 1
            keys = self._keys(request, number, end)
            found += [
                key
                for place, key in enumerate(keys)
                if place >= first and (end - place - 1) * self._chunk_tokens < seen
            ]
        return found

    def load(self, request: Request, hit: PrefixHit, num_external: int) -> None:
        first, end = (n // self._chunk_tokens for n in (hit.num_tokens, hit.num_tokens + num_external))
        self._num_stored[request] = max(self._num_stored.get(request, 0), end)
        keys = self._needed(request, first, end)
        self._cluster.store.load(keys)
        self._cluster.store.use(self._needed(request, 0, end))
        self._asked.append(Job(request, "load", num_tokens=num_external, keys=keys))

    def preempted(self, request: Request) -> None:
        self._answer_s.pop(request, None)
        self._num_stored.pop(request, None)

    def scheduled(self, rows: Sequence[tuple[Request, int]], states: StatesKept) -> None:
        for request, num_tokens in rows:
            first = self._num_stored.get(request, 0)
            end = min(num_tokens, request.num_tokens) // self._chunk_tokens
            decodes = num_tokens > self._num_prefilled[request]
            if end > first and (self._cluster.saves_decodes if decodes else self._saves_prefills):
                self._num_stored[request] = end
                new = self._cluster.store.offer(
                    [
                        key
                        for number in range(len(self._groups))
                        for place, key in enumerate(self._keys(request, number, end))
                        if place >= first and self._is_stored(request, number, place)
                    ]
                )
                if new:
                    self._offered.append(Job(request, "store", keys=new))

        for request, kept in states.items():
            for number, _, place in kept:
                if self._saves_prefills and place * self._chunk_tokens <= self._num_prefilled[request]:
                    new = self._cluster.store.offer(self._keys(request, number, place)[-1:])
                    if new:
                        self._offered.append(Job(request, "store", keys=new))

    def _is_stored(self, request: Request, number: int, place: int) -> bool:
        """Of windows, what they need behind the same prompt; as far as it is there."""
        group = self._groups[number]
        if group.window is None or group.keeps_states:
            return not group.keeps_states
        is_there = request.block_tables[number][place] != NULL_BLOCK
        return is_there and self._kv.is_reachable(group, place, [self._num_prefilled[request] - 1], drops=False)

    def begin(self, start_s: float) -> float:
        start_s, self.waited_s = max(start_s, self.now_s + self.waited_s), 0.0
        for job in [*self._due, *self._asked]:
            self._cluster.begin(job, start_s, self._number)
        self._under_way += self._asked
        self._asked, self._due, self._offered = [], self._offered, []
        return start_s

    def finished(self, request: Request) -> bool:  # noqa: ARG002 - a connector's interface
        return False

    def aborted(self, request: Request) -> None:
        self._answer_s.pop(request, None)

    def lose(self) -> None:
        """The engine is lost with all that it was going to ask for."""
        for job in [*self._due, *self._offered, *self._asked]:
            self._cluster.never(job)

    def reported(self, until_s: float) -> list[Job]:
        over = over_by(self._under_way, until_s)
        self._under_way = [job for job in self._under_way if job not in over]
        return over

    def _keys(self, request: Request, number: int, num_chunks: int) -> list[Key]:
        num_blocks = self._cluster.chunk_blocks
        keys = request.block_keys.upto(num_chunks * num_blocks)
        return [(number, keys[(index + 1) * num_blocks - 1]) for index in range(num_chunks)]


class Cluster:
    """The store, the links to it, and the replicas."""

    def __init__(
        self,
        env: simpy.Environment,
        config: SchedulerConfig,
        sharing: StoreSharing,
        kv: ReplicaKV,
        num_replicas: int = 0,
        beside: Network | None = None,
    ) -> None:
        """Of so many replicas, or of those whose network there is."""
        self.env, options = env, sharing.options
        assert options.chunk_tokens
        self.chunk_tokens = options.chunk_tokens
        self.chunk_blocks = options.chunk_tokens // config.block_size
        self.is_sync = options.lookup == "sync"
        self.saves_decodes = options.save_decode_cache
        self.lookup_s, self.least_tokens = options.lookup_ms / 1e3, options.min_retrieve_tokens
        self._block_size, self._block_bytes = config.block_size, kv.bytes_per_block
        self.store = Store(int(options.capacity_gib * 2**30) // (self.chunk_blocks * self._block_bytes))
        self._network = beside.at(sharing.costs) if beside else Network(env, sharing.costs)
        for _ in range(num_replicas):
            self._network.add(kv.num_gpus)
        self._there = self._network.add_node(options.bandwidth_gb_s * 1e9)

        self._moving: list[tuple[int, Job, simpy.Process]] = []

    def begin(self, job: Job, start_s: float, replica: int) -> None:
        self._moving.append((replica, job, self.env.process(self._move(job, start_s, replica))))

    def lose(self, replica: int) -> None:
        """What is under way to it and from it."""
        for number, _, process in self._moving:
            if number == replica:
                process.interrupt()

    def never(self, job: Job) -> None:
        if job.name == "load":
            self.store.loaded(job.keys)
        else:
            self.store.lost(job.keys)

    def _move(self, job: Job, start_s: float, replica: int) -> Process:
        is_load = job.name == "load"
        is_cut = is_load and self.chunk_blocks > 1  # where the GPU has the beginning of a chunk
        num_blocks = job.num_tokens // self._block_size if is_cut else len(job.keys) * self.chunk_blocks
        way = (self._there, replica) if is_load else (replica, self._there)
        try:
            if start_s > self.env.now:
                yield Due(self.env, start_s - self.env.now, TRANSFER)
            yield from self._network.pull(*way, Load(num_blocks * self._block_bytes, len(job.keys)))
        except simpy.Interrupt:
            self.never(job)
        else:
            if is_load:
                self.store.loaded(job.keys)
                job.end_s = self.env.now
            else:
                self.store.came(job.keys)
        self._moving = [moving for moving in self._moving if moving[1] is not job]


def simulate_store(
    trace: Trace,
    config: SchedulerConfig,
    step_time: StepTimeModel,
    sharing: StoreSharing,
    kv: ReplicaKV,
    *,
    num_replicas: int,
    router: str,
    idle_sleep_s: float,
    speculation: Speculation | None = None,
    scripts: Sequence[Script] | None = None,
    offload: Offload | None = None,
) -> Served:
    """Every step of every replica, each with a CPU tier of its own if `offload` is given."""
    env = simpy.Environment(initial_time=min(0.0, float(trace.arrival_s[0])))
    cluster = Cluster(env, config, sharing, kv, num_replicas)
    requests = make_requests(trace, config, scripts)
    name, given = named("router", router)
    chooser = ROUTERS[name](trace, config, num_replicas, Random(0), given)  # noqa: S311
    gateway = Gateway(env, chooser, len(let_in(requests)), None)
    modes = Modes(
        config.num_batches_in_flight,
        speculation,
        transfers=Transfers("store", reports_at_start=True),
        idle_sleep_s=idle_sleep_s,
    )
    numbers = iter(range(num_replicas))

    def connector(replica: Replica) -> Connector:
        kv = replica.scheduler.kv
        return in_one(None, offload, kv, config, Stored(cluster, next(numbers), kv, config))

    return serve(env, config, step_time, requests, gateway, modes, num_replicas, connector)


def serve(
    env: simpy.Environment,
    config: SchedulerConfig,
    step_time: StepTimeModel,
    requests: Sequence[Request],
    gateway: Gateway,
    modes: Modes,
    num_replicas: int,
    connector: Callable[[Replica], Any],
) -> Served:
    """Replicas whose connectors are made one by one, behind a gateway."""
    recorders = [Recorder() for _ in range(num_replicas)]
    gateway.replicas = [
        Replica(env, config, step_time, recorder, number=number, modes=modes, on_finished=gateway.answered)
        for number, recorder in enumerate(recorders)
    ]
    for replica in gateway.replicas:
        replica.scheduler.connector = connector(replica)
        env.process(replica.run())
    interval_s = gateway.router.scrape_interval_s
    if interval_s and num_replicas > 1:
        env.process(gateway.scrape(interval_s))
    env.process(arrivals(env, let_in(list(requests)), gateway))
    env.run()
    parts = [
        recorder.records(answers(requests), replica.scheduler)
        for recorder, replica in zip(recorders, gateway.replicas, strict=True)
    ]
    return Served(parts, [gateway.chosen.get(request.index, -1) for request in answers(requests)])
