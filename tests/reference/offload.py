"""KV kept on the CPU as well: write-through stores, loads of a prefix, both queues of the worker.

Mirrors vLLM's OffloadingConnector as `golden/RULES_SCALING.md`, section 6, has recorded it; what the CPU keeps is in cpu_cache.py.
A chunk is some blocks in a row, known by the content up to its end.
"""

from collections.abc import Sequence

from sim.engine.config import SchedulerConfig
from tests.reference.connector import Event, Job, over_by
from tests.reference.cpu_cache import CpuCache
from tests.reference.kv_cache import KVCacheManager, PrefixHit
from tests.reference.modes import Offload
from tests.reference.request import Request, RequestStatus


class OffloadConnector:
    """What is stored and loaded for whom, and a queue of the worker for each direction."""

    def __init__(self, offload: Offload, kv: KVCacheManager, config: SchedulerConfig) -> None:
        self.events: list[Event] = []
        self.now_s = 0.0
        self._offload = offload
        self._pool = kv.pool
        self._caches_prefixes = config.engine.enable_prefix_caching
        self._chunk_blocks = offload.blocks_per_chunk
        self._chunk_tokens = offload.blocks_per_chunk * config.block_size
        self._rules = config.engine.rules
        by_request = self._rules.ranks_chunks_by_request
        self._cpu = CpuCache(offload.cpu_chunks, offload.eviction_policy, ranks_by_request=by_request)
        self._num_stored: dict[Request, int] = {}
        self._tables: dict[Request, list[int]] = {}
        self._taken: set[int] = set()
        self._finished: list[tuple[Request, int]] = []
        self._offered: list[Job] = []
        self._due: list[Job] = []
        self._loads_asked: list[Job] = []
        self._under_way: list[Job] = []
        self._to_flush: list[Job] = []
        self._free_s = {"load": 0.0, "store": 0.0}

    @property
    def has_pending(self) -> bool:
        return bool(self._jobs)

    @property
    def begins_loads(self) -> bool:
        return bool(self._loads_asked)

    @property
    def hears_of_allocations(self) -> bool:
        """Whether it is told at once of blocks that another connector loads into."""
        return self._rules.tells_all_connectors_of_allocations

    @property
    def _jobs(self) -> list[Job]:
        return [*self._under_way, *self._loads_asked, *self._due, *self._offered]

    def find(self, request: Request, hit: PrefixHit) -> int | None:
        """The prefix behind the local hit that is in the CPU cache, in whole chunks."""
        self._tables[request] = []
        if self._rules.offers_chunks_anew:
            self._num_stored[request] = 0
        if any(job.request is request for job in self._jobs):
            return None
        first = hit.num_tokens // self._chunk_tokens
        keys = self._keys(request, request.num_tokens // self._chunk_tokens)
        if len(keys) * self._chunk_tokens - hit.num_tokens < self._chunk_tokens:
            return 0
        end = first
        while end < len(keys) and keys[end] in self._cpu:
            end += 1
        if not all(map(self._cpu.is_ready, keys[first:end])):
            return None
        num_tokens = end * self._chunk_tokens - hit.num_tokens
        if num_tokens < self._chunk_tokens:
            return 0
        loading = {key for job in self._jobs if job.name == "load" for key in job.keys}
        return None if self._caches_prefixes and not loading.isdisjoint(keys[first:end]) else num_tokens

    def num_stored_behind(self, request: Request, hit: PrefixHit) -> int:
        """Tokens behind the local hit whose chunks have been stored, without a gap."""
        first = end = hit.num_tokens // self._chunk_tokens
        keys = self._keys(request, request.num_prompt_tokens // self._chunk_tokens)
        while end < len(keys) and self._cpu.is_ready(keys[end]):
            end += 1
        return end * self._chunk_tokens - hit.num_tokens if end > first else 0

    def load(self, request: Request, hit: PrefixHit, num_external: int) -> None:
        first = hit.num_tokens // self._chunk_tokens
        end = (hit.num_tokens + num_external) // self._chunk_tokens
        keys = self._keys(request, end)[first:]
        self.hears_of_table(request)
        num_blocks = num_external * self._chunk_blocks // self._chunk_tokens
        self._cpu.use(request.request_id, keys, first)
        self._num_stored[request] = end
        duration_s = self._offload.load_base_s + self._offload.load_block_s * num_blocks
        self._loads_asked.append(Job(request, "load", duration_s, num_tokens=num_external, keys=keys))

    def preempted(self, request: Request) -> None:
        self._to_flush += [job for job in self._jobs if job.name == "store" and job.request is request]

    def finished(self, request: Request) -> bool:
        """Blocks come free at once; who takes them waits for their stores."""
        self._finished.append((request, max(request.num_prompt_tokens, request.num_tokens - 1)))
        return False

    def aborted(self, request: Request) -> None:
        """What has been scheduled of it may be stored."""
        self._finished.append((request, request.num_computed_tokens))

    def hears_of_table(self, request: Request) -> None:
        """A request has got blocks for a load; vLLM tells of them all, also of those found here."""
        self._taken.update(_table(request))

    def scheduled(self, rows: Sequence[tuple[Request, int]]) -> None:
        """Offer the chunks that are complete after this step, then those of requests that have ended.

        Taken are the new blocks of those who run on, and the whole tables of those who join them.
        """
        for request, _ in rows:
            self._taken.update(_table(request)[len(self._tables.get(request, [])) :])
            self._tables[request] = _table(request)
        taken, self._taken = self._taken, set()
        for job in self._jobs:
            is_left = job.request.status is RequestStatus.FINISHED
            if job.name == "store" and is_left and not taken.isdisjoint(job.blocks):
                self._to_flush.append(job)
        for request, num_tokens in rows:
            self._offer(request, min(num_tokens, request.num_tokens))
        for request, num_tokens in self._finished:
            offered = self._offer(request, num_tokens)
            if offered and not taken.isdisjoint(offered.blocks):
                self._to_flush.append(offered)
        for request, _ in self._finished:
            self._cpu.ended(request.request_id, self._keys(request, request.num_tokens // self._chunk_tokens))
        self._finished = []

    def _offer(self, request: Request, num_tokens: int) -> Job | None:
        """Store what is complete and not there yet, if the CPU has room for all of it."""
        if self._offload.prompt_only:
            num_tokens = min(num_tokens, request.num_prompt_tokens)
        first, end = self._num_stored.get(request, 0), num_tokens // self._chunk_tokens
        keys = self._keys(request, end)
        new = self._cpu.offer(request.request_id, keys[first:], first) if end > first else None
        if new is None:
            return None
        self._num_stored[request] = end
        if not new:
            return None
        chunks = [index for index in range(first, end) if keys[index] in new]
        blocks = [block for index in chunks for block in self._blocks(request, index)]
        duration_s = self._offload.store_base_s + self._offload.store_block_s * len(blocks)
        job = Job(request, "store", duration_s, blocks=blocks, keys=new)
        self._offered.append(job)
        return job

    def _blocks(self, request: Request, chunk: int) -> list[int]:
        return self._tables[request][chunk * self._chunk_blocks : (chunk + 1) * self._chunk_blocks]

    def begin(self, start_s: float) -> float:
        """Stores that were offered before this pass, and its loads; the batch waits for those whose blocks it takes.

        What was offered by this pass itself begins with it too, if its blocks are already taken.
        """
        stores = [*self._due, *(job for job in self._offered if job in self._to_flush)]
        for job in [*stores, *self._loads_asked]:
            job.end_s = self._free_s[job.name] = max(start_s, self._free_s[job.name]) + job.duration_s
        flushed = [job for job in [*self._under_way, *stores] if job in self._to_flush]
        begins_s = max([start_s, *(job.end_s for job in flushed if job.end_s is not None)])
        self._tell(len(flushed), begins_s - start_s)
        self._under_way += [*stores, *self._loads_asked]
        self._due, self._offered = [job for job in self._offered if job not in stores], []
        self._loads_asked, self._to_flush = [], []
        return begins_s

    def _tell(self, num_flushed: int, waited_s: float) -> None:
        for job in self._offered:
            self.events.append([self.now_s, "store", job.request.request_id, len(job.blocks), len(self._cpu)])
        if waited_s > 0:
            self.events.append([self.now_s, "flush_wait", waited_s, num_flushed])
        free = self._pool.num_free_blocks
        for job in self._loads_asked:
            self.events.append([self.now_s, "load_start", job.request.request_id, job.num_tokens, free])

    def reported(self, until_s: float) -> list[Job]:
        over = over_by(self._under_way, until_s)
        self._under_way = [job for job in self._under_way if job not in over]
        for job in over:
            if job.name == "store":
                self._cpu.stored(job.keys)
            else:
                self._cpu.leave(job.keys)
        return over

    def _keys(self, request: Request, num_chunks: int) -> list[int]:
        keys = request.block_keys.upto(num_chunks * self._chunk_blocks)
        return [keys[(index + 1) * self._chunk_blocks - 1] for index in range(num_chunks)]


def _table(request: Request) -> list[int]:
    return list(request.block_tables[0]) if request.block_tables else []
