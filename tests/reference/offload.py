"""KV kept on the CPU as well: write-through stores, loads of a prefix, both queues of the worker.

Mirrors vLLM's OffloadingConnector as `golden/RULES_SCALING.md`, section 6, has recorded it, and of KV groups as 0.33 does it; what the CPU keeps is
in cpu_cache.py. A chunk is some blocks of a group in a row, known by the content up to its end; where there are windows, one block.
"""

from collections.abc import Sequence
from itertools import chain

from sim.engine.config import SchedulerConfig
from tests.reference.blocks import NULL_BLOCK
from tests.reference.connector import Event, Job, StatesKept, over_by
from tests.reference.cpu_cache import CpuCache, Key, Keys
from tests.reference.kv_cache import KVCacheManager, PrefixHit, blocks_for
from tests.reference.modes import Offload
from tests.reference.request import Request, RequestStatus

Tables = list[list[int]]


class OffloadConnector:
    """What is stored and loaded for whom, and a queue of the worker for each direction."""

    waited_s = 0.0

    def __init__(self, offload: Offload, kv: KVCacheManager, config: SchedulerConfig) -> None:
        self.events: list[Event] = []
        self.now_s = 0.0
        self._offload = offload
        self._kv = kv
        self._pool = kv.pool
        self._groups = config.kv_groups
        self._windows = [number for number, group in enumerate(config.kv_groups) if group.window is not None]
        self._states = [number for number, group in enumerate(config.kv_groups) if group.keeps_states]
        assert not self._windows or offload.blocks_per_chunk == 1, (
            "vLLM stores some chunks of windows only, if they are longer"
        )
        self._caches_prefixes = config.engine.enable_prefix_caching
        self._chunk_blocks = offload.blocks_per_chunk
        self._block_size = config.block_size
        self._chunk_tokens = offload.blocks_per_chunk * config.block_size
        self._rules = config.engine.rules
        by_request = self._rules.ranks_chunks_by_request
        self._cpu = CpuCache(
            offload.cpu_chunks,
            offload.eviction_policy,
            ranks_by_request=by_request,
            touches_at_once=self._rules.touches_chunks_at_once,
        )
        self._num_found_chunks: dict[Request, int] = {}
        self._doubts_drafts = kv.doubts_drafts
        self._num_stored: dict[Request, list[int]] = {}
        self._tables: dict[Request, Tables] = {}
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
    def brings_states(self) -> bool:
        return False

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
        """The prefix behind the local hit that is in the CPU cache: whole chunks, but for a last token that is computed in any case."""
        self._tables[request] = self._no_tables()
        if self._rules.offers_chunks_anew:
            self._num_stored[request] = [0 for _ in self._groups]
        if any(job.request is request for job in self._jobs):
            return None
        num_tokens = self._num_waited_for(request, hit)
        self._num_found_chunks[request] = (hit.num_tokens + (num_tokens or 0)) // self._chunk_tokens
        self._touch(request)
        return num_tokens

    def _num_waited_for(self, request: Request, hit: PrefixHit) -> int | None:
        """The same as is found, where nobody else loads some of it."""
        num_tokens = self._num_found(request, hit.num_tokens)
        if not num_tokens:
            return num_tokens
        loading = {key for job in self._jobs if job.name == "load" for key in job.keys}
        end = hit.num_tokens + num_tokens
        needed = [self._keys(request, number, hit.num_tokens, end) for number in range(len(self._groups))]
        for number in self._windows:
            needed[number] = needed[number][-self._window_chunks(number) :]
        return None if self._caches_prefixes and not loading.isdisjoint(chain.from_iterable(needed)) else num_tokens

    def _touch(self, request: Request) -> None:
        """All that there could be of it; of windows what was found can still use, and what comes behind."""
        for number in range(len(self._groups)):
            keys = self._keys(request, number, 0, request.num_tokens)
            if number in self._windows:
                keys = keys[max(0, self._num_found_chunks[request] - self._window_chunks(number)) :]
            self._cpu.touch(keys)

    def _num_found(self, request: Request, num_local: int) -> int | None:
        """What all groups have behind the local hit; None while some of it is still being stored.

        One group after the other shortens what is asked for; windows are asked again behind a shorter prefix. One with a drafter's layers is asked for a chunk
        more, which it then leaves, once for a length that others have found.
        """
        size = self._chunk_tokens
        full = [number for number in range(len(self._groups)) if number not in self._windows]
        windows = sorted(self._windows, key=lambda number: -blocks_for(self._window(number), size))
        end = min(request.num_tokens - (1 if windows else 0), request.num_tokens // size * size)
        if self._states:
            end = end // size * size
        found, is_pending = 0, False
        turn = [*full, *windows]
        left: set[int] = set()
        while turn and end - num_local >= size:
            after: list[int] = []
            has_asked_window = False
            for number in turn:
                reached = self._reached(request, number, num_local, end, leaves_one=number not in left)
                if reached is None:
                    is_pending = True
                else:
                    left.add(number)
                    end = min(end, reached)
                if end - num_local < size:
                    return 0
                if end - num_local < found:
                    if not self._doubts_drafts[number]:
                        left.clear()
                    if is_pending:
                        is_pending, after = False, [*full, *windows]
                    elif has_asked_window and not after:
                        after = windows
                has_asked_window |= number in windows
                found = end - num_local
            turn = after
        return None if is_pending else found

    def _reached(self, request: Request, number: int, num_local: int, end: int, *, leaves_one: bool) -> int | None:
        """The tokens that a group has with what is here, up to `end`; None while some of it is still being stored."""
        size = self._chunk_tokens
        leaves_one = leaves_one and self._doubts_drafts[number]
        keys = self._keys(request, number, num_local, end + leaves_one * size)
        if number in self._windows:
            count = self._last_window(keys, self._window_chunks(number) + leaves_one)
        else:
            count = self._prefix(keys)
        return count if count is None else (num_local // size + max(0, count - leaves_one)) * size

    def _prefix(self, keys: Keys) -> int | None:
        """How many are there without a gap; None while one of them is being stored."""
        count = next((place for place, key in enumerate(keys) if key not in self._cpu), len(keys))
        return count if all(map(self._cpu.is_ready, keys[:count])) else None

    def _last_window(self, keys: Keys, needed: int) -> int | None:
        """Where the last run of so many ends, or the first run that begins with the keys; None while some of it is being stored."""
        run: Keys = []
        for place in reversed(range(len(keys))):
            if keys[place] in self._cpu:
                run.append(keys[place])
            else:
                run = []
            if len(run) == needed:
                return place + needed if all(map(self._cpu.is_ready, run)) else None
        return len(run) if all(map(self._cpu.is_ready, run)) else None

    def _window(self, number: int) -> int:
        return self._groups[number].window or 0

    def _window_chunks(self, number: int) -> int:
        """What a window needs; the last token that is known leaves its last chunk one short, and reaches no further back for that."""
        return 1 if number in self._states else blocks_for(self._window(number), self._chunk_tokens)

    def num_stored_behind(self, request: Request, hit: PrefixHit) -> int:
        """Tokens behind the local hit whose chunks have been stored, as far as all groups can go on from them."""
        size = self._chunk_tokens
        for end in range(request.num_prompt_tokens // size * size, hit.num_tokens, -size):
            needed = [self._keys(request, number, hit.num_tokens, end) for number in range(len(self._groups))]
            for number in self._windows:
                num_needed = blocks_for(self._window(number) - 1, size)
                needed[number] = needed[number][-num_needed:] if num_needed else []
            if all(map(self._cpu.is_ready, chain.from_iterable(needed))):
                return end - hit.num_tokens
        return 0

    def load(self, request: Request, hit: PrefixHit, num_external: int) -> None:
        end = hit.num_tokens + num_external
        keys: dict[Key, int] = {}
        num_blocks = 0
        for number, table in enumerate(request.block_tables):
            first = hit.num_tokens // self._block_size
            while table[first] == NULL_BLOCK:
                first += 1
            num_blocks += blocks_for(end, self._block_size) - first
            first = first * self._block_size // self._chunk_tokens
            keys |= {
                key: first + place
                for place, key in enumerate(self._keys(request, number, first * self._chunk_tokens, end))
            }
        self.hears_of_table(request)
        self._cpu.use(request.request_id, keys)
        self._num_stored[request] = [blocks_for(end, self._chunk_tokens) for _ in self._groups]
        duration_s = self._offload.load_base_s + self._offload.load_block_s * num_blocks
        self._loads_asked.append(Job(request, "load", duration_s, num_tokens=num_external, keys=list(keys)))

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
        self._taken.update(_held(request.block_tables))

    def scheduled(self, rows: Sequence[tuple[Request, int]], states: StatesKept) -> None:
        """Offer the chunks that are complete after this step, then those of requests that have ended.

        Taken are the new blocks of those who run on, and the whole tables of those who join them. Of what a window has passed, blocks that
        somebody has taken are not stored any more.
        """
        taken = self._take_up(rows)
        for job in self._jobs:
            if job.name == "store" and not taken.isdisjoint(self._watched(job)):
                self._to_flush.append(job)
        self._offer_states(states)
        for request, num_tokens in rows:
            self._offer(request, min(num_tokens, request.num_tokens))
        for request, num_tokens in self._finished:
            offered = self._offer(request, num_tokens)
            if offered and not taken.isdisjoint(self._watched(offered)):
                self._to_flush.append(offered)
        for request, _ in self._finished:
            every = [self._keys(request, number, 0, request.num_tokens) for number in range(len(self._groups))]
            self._cpu.ended(request.request_id, [key for keys in zip(*every, strict=True) for key in keys])
        self._finished = []

    def _take_up(self, rows: Sequence[tuple[Request, int]]) -> set[int]:
        """Blocks that were taken in this pass, or for a load before it; they are lost to those who held them before."""
        num_known = {request: len(tables[0]) for request, tables in self._tables.items()}
        for request, _ in rows:
            tables = self._tables.setdefault(request, self._no_tables())
            num_known[request] = len(tables[0])
            new = [blocks[len(table) :] for table, blocks in zip(tables, request.block_tables, strict=True)]
            self._taken.update(_held(new))
            for table, blocks in zip(tables, new, strict=True):
                table.extend(blocks)
        taken, self._taken = self._taken, set()
        for request, tables in self._tables.items():
            for number in self._windows:
                table = tables[number]
                pending = range(self._stored(request)[number], num_known[request])
                for place in [place for place in pending if table[place] in taken]:
                    table[place] = NULL_BLOCK
        return taken

    def _watched(self, job: Job) -> set[int]:
        """Blocks of a store that may come free before it is over: of windows, and of requests that have ended."""
        is_left = job.request.status is RequestStatus.FINISHED
        return {block for number, block in job.blocks if is_left or number in self._windows}

    def _offer_states(self, states: StatesKept) -> None:
        """Each that was made findable in this pass by itself, and once: where there is no room for it, it is not stored."""
        for request, kept in states.items():
            most = request.num_prompt_tokens if self._offload.prompt_only else request.num_tokens
            for number, block, place in kept:
                if place * self._block_size > most:
                    continue
                (key,) = self._keys(request, number, (place - 1) * self._block_size, place * self._block_size)
                if self._cpu.offer(request.request_id, {key: place - 1}):
                    duration_s = self._offload.store_base_s + self._offload.store_block_s
                    self._offered.append(Job(request, "store", duration_s, blocks=[(number, block)], keys=[key]))

    def _offer(self, request: Request, num_tokens: int) -> Job | None:
        """Store what is complete and not there yet, if the CPU has room for all of it."""
        if self._offload.prompt_only:
            num_tokens = min(num_tokens, request.num_prompt_tokens)
        boundaries = [request.num_prompt_tokens - 1, *([request.junction] if request.junction else [])]
        ends = list(self._stored(request))
        chunks: dict[Key, tuple[int, int]] = {}
        for number, group in enumerate(self._groups):
            first, doubts = ends[number], self._doubts_drafts[number]
            ends[number] = max(first, self._num_storable(request, number, num_tokens))
            for place in range(first, ends[number]):
                if NULL_BLOCK in self._blocks(request, place, number) or number in self._states:
                    continue
                if self._kv.is_reachable(group, place, boundaries, drops=doubts):
                    (key,) = self._keys(request, number, place * self._chunk_tokens, (place + 1) * self._chunk_tokens)
                    chunks[key] = (place, number)
        new = self._cpu.offer(request.request_id, {key: place for key, (place, _) in chunks.items()}) if chunks else []
        if new is None:
            return None
        self._num_stored[request] = ends
        if not new:
            return None
        self._touch(request)
        blocks = [(chunks[key][1], block) for key in new for block in self._blocks(request, *chunks[key])]
        duration_s = self._offload.store_base_s + self._offload.store_block_s * len(blocks)
        job = Job(request, "store", duration_s, blocks=blocks, keys=new)
        self._offered.append(job)
        return job

    def _stored(self, request: Request) -> list[int]:
        return self._num_stored.setdefault(request, [0 for _ in self._groups])

    def _num_storable(self, request: Request, number: int, num_tokens: int) -> int:
        """Chunks that are complete; of a group with a drafter's layers but the last, while drafts may still be written into it."""
        is_decoding = num_tokens > request.num_prompt_tokens and request.status is not RequestStatus.FINISHED
        return max(0, num_tokens // self._chunk_tokens - (self._doubts_drafts[number] and is_decoding))

    def _blocks(self, request: Request, chunk: int, number: int) -> list[int]:
        return self._tables[request][number][chunk * self._chunk_blocks : (chunk + 1) * self._chunk_blocks]

    def _no_tables(self) -> Tables:
        return [[] for _ in self._groups]

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

    def _keys(self, request: Request, number: int, start: int, end: int) -> Keys:
        """Of a group's chunks between those tokens; one that is not filled counts if the request knows all of it."""
        chunks = range(
            start // self._chunk_tokens,
            min(blocks_for(end, self._chunk_tokens), request.num_tokens // self._chunk_tokens),
        )
        keys = request.block_keys.upto(chunks.stop * self._chunk_blocks)
        return [(number, keys[(chunk + 1) * self._chunk_blocks - 1]) for chunk in chunks]


def _held(tables: Tables) -> set[int]:
    return {block for table in tables for block in table if block != NULL_BLOCK}
