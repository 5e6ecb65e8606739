"""KV kept on the CPU as well: write-through stores, loads of a prefix, and a queue of the worker for either.

Mirrors vLLM's OffloadingConnector (v1/kv_offload, distributed/kv_transfer/kv_connector/v1/offloading, 0.30 to 0.33) as recorded. A chunk is some blocks of a KV
group in a row, one where there are several groups, known by the content up to its end; a state is one that is stored by itself, as it becomes one that can be
found. Deliberate differences: loads never come within the step that asks for them; of blocks that are taken twice while they are stored it is known but
once, which only a log's count of stores waited for tells; before 0.24, nobody waits for blocks that several MTP modules leave unfinished; of several groups
before 0.33, drafts without async scheduling leave the last block of a prompt that ends there unstored.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sim.engine.config import SchedulerConfig
from sim.engine.records import Ints, OffloadRecords
from sim.engine.request import Request
from sim.engine.walking.chunk_keys import chunk_keys
from sim.engine.walking.chunks import NOTHING, Chunks, CpuCache
from sim.engine.walking.connector import Connector, Transfer, completion_order, first_end_s
from sim.engine.walking.loads import Loads
from sim.engine.walking.offload_jobs import Job, Worker
from sim.engine.walking.progress import Progress
from sim.engine.walking.slots import KeptState, Slots
from sim.engine.walking.tier_lookup import TierLookup
from sim.engine.walking.touched_eviction import eviction_policy
from sim.specs.kv_transfer import OffloadConfig

LOST = -1
"""A block that somebody else has taken before it was stored."""


class Offload(Connector):
    """Stores are offered at the end of a pass and begin with the next one's batch (`_due`), loads with their own."""

    def __init__(self, config: OffloadConfig, scheduler: SchedulerConfig, *, drops: bool = False) -> None:
        block_size, rules = scheduler.block_size, scheduler.engine.rules
        caches_prefixes = scheduler.engine.enable_prefix_caching
        self._windows = [group.window for group in scheduler.kv_groups]
        self._num_groups = len(self._windows)
        self._token_groups = [number for number, group in enumerate(scheduler.kv_groups) if not group.keeps_states]
        self._knows_copies = self._num_groups > 1 or scheduler.has_windows
        assert not self._knows_copies or (caches_prefixes and config.blocks_per_chunk == 1), "each block is known"
        self.reports_at_start = config.reports_at_start
        self._prompt_only = config.offload_prompt_only
        self._chunk_blocks = config.blocks_per_chunk
        self._chunk_tokens = config.blocks_per_chunk * block_size
        self._block_size = block_size
        self._caches_prefixes = caches_prefixes
        self._piles_up = rules.unhashed_blocks_first or not caches_prefixes
        self._offers_anew = rules.offers_chunks_anew
        self._hears_of_allocations = rules.tells_all_connectors_of_allocations
        self._touches = rules.touches_chunks_at_once
        self._cpu = CpuCache(config.cpu_chunks, eviction_policy(config.eviction_policy, config.cpu_chunks, rules))
        self._doubts = [drops and group.has_drafter for group in scheduler.kv_groups]
        self._lookup = TierLookup(
            self._cpu, scheduler.kv_groups, self._chunk_tokens, self._doubts, caches_prefixes=caches_prefixes
        )
        self._loads = Worker(config.load_base_s, config.load_block_s)
        self._stores = Worker(config.store_base_s, config.store_block_s)
        self._taken: list[Ints] = []
        self._rows: list[tuple[Progress, int]] = []
        self._with_left: dict[Progress, None] = {}
        self._lost: set[int] = set()
        self._finished: list[tuple[Progress, int]] = []
        self._offered: list[Job] = []
        self._due: list[Job] = []
        self._asked: list[Job] = []
        self._under_way: list[Job] = []
        self._block_bytes = config.block_bytes
        self._moved = Loads()

    def attach(self, slots: Slots) -> None:
        super().attach(slots)
        if self._caches_prefixes:
            slots.kv.drain_handed_out()
        slots.note_kept_states()

    @property
    def has_pending(self) -> bool:
        return bool(self._under_way or self._asked or self._due or self._offered)

    @property
    def next_end_s(self) -> float:
        return 0.0 if self._asked or self._due or self._offered else first_end_s(self._under_way)

    @property
    def lets_decode(self) -> bool:
        """Not while blocks that a pass takes may be those of a store which it then has to wait for."""
        if self._finished or self.next_end_s == 0.0:
            return False
        return not any(
            job.kind == "store" and (job.progress.is_finished or len(job.passing_copies)) for job in self._under_way
        )

    def has_stored(self, progress: Progress) -> bool:
        return self._prompt_only and progress.chunks.num_stored >= progress.num_prompt // self._chunk_tokens

    def added(self, progress: Progress) -> None:
        """Every block that may be stored gets a name of its own, so that it is known who takes it."""
        request = progress.request
        progress.chunks = Chunks()
        if self._caches_prefixes:
            num_tokens = request.num_prompt_tokens + (0 if self._prompt_only else request.max_tokens)
            self.slots.kv.name_blocks(request, num_tokens // self._block_size)

    # -- loads -----------------------------------------------------------------------------------------------------

    def find(self, progress: Progress, num_hit_tokens: int) -> int:
        """The prefix behind the local hit that is on the CPU, in whole chunks."""
        chunks = progress.chunks
        chunks.has_joined, chunks.num_known = False, 0
        self._forget_left(progress)
        if self._offers_anew:
            chunks.num_stored = chunks.num_doubted = 0
        if chunks.num_jobs:
            return -1
        end = progress.num_tokens // self._chunk_tokens
        keys = self._keys(self._chunk_keys(progress, end))
        num_found = self._lookup.num_found(keys, num_hit_tokens, progress.num_tokens)
        chunks.num_found = (num_hit_tokens + max(0, num_found)) // self._chunk_tokens
        self._touch(progress)
        return num_found

    def _touch(self, progress: Progress) -> None:
        """All that there could be of a request; of windows what was found can still use, and what comes behind."""
        if not self._touches:
            return
        end = self._num_to_store(progress) // self._chunk_tokens
        for group, keys in enumerate(self._keys(self._chunk_keys(progress, end)[:end])):
            self._cpu.touch(keys[self._lookup.num_passed(group, progress.chunks.num_found) :])

    def _num_to_store(self, progress: Progress) -> int:
        """Known tokens of a request that go to the CPU, once they are computed."""
        return progress.num_prompt if self._prompt_only else progress.num_tokens

    def num_blocks_behind(self, request: Request, num_hit_blocks: int) -> int:
        """Those that have been stored, in whole chunks."""
        keyed, count = request.keyed, self._chunk_blocks
        if keyed is None:
            return 0
        first, last = num_hit_blocks // count, request.num_shared_blocks // count
        keys = self._keys([keyed.key((chunk + 1) * count - 1) for chunk in range(last)])
        num_chunks = self._lookup.num_stored(keys, first, last)
        return (first + num_chunks) * count - num_hit_blocks if num_chunks else 0

    def _chunk_keys(self, progress: Progress, num_chunks: int) -> list[int]:
        """At least so many, whatever the group."""
        return chunk_keys(progress, progress.chunks.keys, num_chunks, self._chunk_blocks)

    def _keys(self, keys: list[int]) -> list[list[int]]:
        """By group."""
        count = self._num_groups
        return [keys] if count == 1 else [[key * count + group for key in keys] for group in range(count)]

    def loads_in_step(self, progress: Progress) -> bool:  # noqa: ARG002 - a connector's interface
        return False

    def load(self, progress: Progress, num_hit_tokens: int, num_tokens: int) -> None:
        first, end = num_hit_tokens // self._chunk_tokens, num_hit_tokens + num_tokens
        last = -(-end // self._chunk_tokens)
        keys: list[int] = []
        places: list[int] = []
        for group, of_group in enumerate(self._keys(self._chunk_keys(progress, last))):
            window = self._windows[group]
            start = first if window is None else max(first, (end - window + 1) // self._chunk_tokens)
            keys += of_group[start:last]
            places += range(start, last)
        self._cpu.use(keys, places, progress.chunks.access)
        progress.chunks.num_stored = progress.chunks.num_doubted = last
        progress.chunks.num_jobs += 1
        num_blocks = len(keys) * self._chunk_blocks - num_hit_tokens // self._block_size % self._chunk_blocks
        self._moved.add(progress, num_tokens, num_blocks)
        self._asked.append(Job(progress, "load", num_tokens, num_blocks, keys))

    # -- stores ----------------------------------------------------------------------------------------------------

    def preempted(self, progress: Progress) -> None:
        for job in (*self._under_way, *self._due):
            if job.kind == "store" and job.progress is progress:
                job.is_waited_for = True

    def ending(self, progress: Progress) -> None:
        if self._knows_copies:
            end = self._num_to_store(progress) // self._chunk_tokens
            self._find_copies(progress, end, end)
            self._with_left[progress] = None

    def finished(self, progress: Progress, now_s: float) -> bool:  # noqa: ARG002 - a connector's interface
        """Blocks come free at once; who takes them waits for their stores."""
        self._ends(progress, max(progress.num_prompt, progress.num_tokens - 1))
        return False

    def aborted(self, progress: Progress) -> None:
        """As far as it was scheduled it may be stored."""
        self._ends(progress, progress.num_computed)

    def _ends(self, progress: Progress, num_tokens: int) -> None:
        if not self._knows_copies:
            progress.chunks.copies = self._copies(progress)
        self._finished.append((progress, num_tokens))

    def lose_all(self) -> list[Transfer]:
        loads: list[Transfer] = [job for job in (*self._under_way, *self._asked) if job.kind == "load"]
        self._finished, self._offered, self._due, self._asked, self._under_way = [], [], [], [], []
        return loads

    def note_taken(self) -> None:
        """What this pass has taken until here, batches of it wait for."""
        if self._caches_prefixes:
            taken = self.slots.kv.drain_handed_out()
            if len(taken):
                self._taken.append(taken)

    def hears_of_other_load(self, progress: Progress, num_tokens: int) -> None:  # noqa: ARG002 - a connector's interface
        """What has been taken since, another connector loads into; before 0.33 vLLM tells this one with the request's first batch."""
        if not self._hears_of_allocations:
            progress.chunks.taken = self.slots.kv.drain_handed_out()

    def _copies(self, progress: Progress) -> Ints:
        request = progress.request
        return self.slots.kv.copies(request) if self._caches_prefixes and request.keyed is not None else NOTHING

    def computes(self, progress: Progress, num_tokens: int) -> None:
        chunks = progress.chunks
        if not chunks.has_joined:
            chunks.has_joined = True
            self._taken += [self._copies(progress), chunks.taken]
            chunks.taken = NOTHING
        self._rows.append((progress, min(num_tokens, progress.num_tokens)))

    def close_pass(self, kept_states: Sequence[KeptState]) -> None:
        """Let the batch wait for stores whose blocks the pass has taken; offer what is complete, also of requests that have ended."""
        self.note_taken()
        taken, self._taken = np.concatenate([NOTHING, *self._taken]), []
        if self._knows_copies and len(taken):
            self._lost = set(taken.tolist())
            self._note_lost(taken)
        for state in kept_states:
            self._offer_state(state)
        for progress, num_tokens in (*self._rows, *self._finished):
            self._offer(progress, num_tokens)
        for progress, _ in self._rows:
            progress.chunks.num_known = progress.num_blocks
        self._rows, self._lost = [], set()
        for job in (*self._under_way, *self._due, *self._offered):
            if job.kind == "store" and job.progress.is_finished:
                self._wait_for_lost_blocks(job, taken)
        for progress, _ in self._finished:
            keys = self._keys(progress.chunks.keys)
            self._cpu.ended([key for of_chunk in zip(*keys, strict=True) for key in of_chunk], progress.chunks.access)
            self._forget_left(progress)
        self._finished = []

    def _note_lost(self, taken: Ints) -> None:
        """Who has yet to store a block that a window has passed and somebody has taken loses it; a store under way is waited for."""
        for progress in self._with_left:
            left = progress.chunks.left
            for place, copy in left.items():
                if copy in self._lost and self._passes(copy):
                    left[place] = LOST
        for job in (*self._under_way, *self._due):
            if len(job.passing_copies) and np.isin(job.passing_copies, taken).any():
                job.is_waited_for = True

    def _forget_left(self, progress: Progress) -> None:
        progress.chunks.left = {}
        self._with_left.pop(progress, None)

    def _offer(self, progress: Progress, num_tokens: int) -> None:
        """Store what is complete and not there yet, if the CPU has room for all of it."""
        chunks = progress.chunks
        if self._prompt_only:
            num_tokens = min(num_tokens, progress.num_prompt)
        end = num_tokens // self._chunk_tokens
        # drafts may still be written into the last chunk of a request that goes on
        end_doubted = end - (num_tokens > progress.num_prompt and not progress.is_finished)
        if self._knows_copies:
            if end > chunks.num_stored or (True in self._doubts and end_doubted > chunks.num_doubted):
                self._offer_groups(progress, end, end_doubted)
            return
        first, end = chunks.num_stored, end_doubted if self._doubts[0] else end
        if end <= first:
            return
        keys = self._chunk_keys(progress, end)[first:end]
        new = self._cpu.offer(keys, range(first, end), chunks.access)
        if new is None:
            return
        chunks.num_stored = end
        if not new:
            return
        self._touch(progress)
        job = Job(progress, "store", 0, len(new) * self._chunk_blocks, new)
        are_new = set(new)
        blocks = [
            (first + number) * self._chunk_blocks + block
            for number, key in enumerate(keys)
            if key in are_new
            for block in range(self._chunk_blocks)
        ]
        job.blocks, job.end_block = np.array(blocks), blocks[-1] + 1
        self._store(job)

    def _store(self, job: Job) -> None:
        job.progress.chunks.num_jobs += 1
        self._moved.num_stored_blocks += job.num_blocks
        self._offered.append(job)

    def _offer_groups(self, progress: Progress, end: int, end_doubted: int) -> None:
        """The same of several groups, of whose blocks those that are to stay and that the request has are stored."""
        chunks, count = progress.chunks, self._num_groups
        self._find_copies(progress, end, end_doubted)
        left = sorted((place % count, place // count) for place, copy in chunks.left.items() if copy != LOST)
        ends = [end_doubted if doubts else end for doubts in self._doubts]
        offered = [(group, block) for group, block in left if block < ends[group]]
        by_group = self._keys(self._chunk_keys(progress, end))
        keys = [by_group[group][block] for group, block in offered]
        copies = {key: chunks.left[block * count + group] for key, (group, block) in zip(keys, offered, strict=True)}
        new = self._cpu.offer(keys, [block for _, block in offered], chunks.access) if keys else []
        if new is None:
            self._with_left[progress] = None
            return
        chunks.num_stored = max(chunks.num_stored, end)
        chunks.num_doubted = max(chunks.num_doubted, end_doubted)
        self._forget_left(progress)
        if new:
            self._touch(progress)
            job = Job(progress, "store", 0, len(new), new)
            job.copies = np.array([copies[key] for key in new])
            job.passing_copies = job.copies[np.array([self._passes(copies[key]) for key in new])]
            self._store(job)

    def _offer_state(self, state: KeptState) -> None:
        """Store one that has been made findable, if the CPU has room for it now."""
        progress, block = state.progress, state.block
        if (block + 1) * self._block_size > self._num_to_store(progress):
            return
        key = self._keys(self._chunk_keys(progress, block + 1))[state.group][block]
        if self._cpu.offer([key], [block], progress.chunks.access):
            job = Job(progress, "store", 0, 1, [key])
            job.copies = job.passing_copies = np.array([state.copy])
            self._store(job)

    def _find_copies(self, progress: Progress, end: int, end_doubted: int) -> None:
        """Note what a request holds of so many of its blocks that has not been dealt with."""
        kv, chunks, count = self.slots.kv, progress.chunks, self._num_groups
        left = chunks.left
        for group in self._token_groups:
            doubts = self._doubts[group]
            first, last = (chunks.num_doubted, end_doubted) if doubts else (chunks.num_stored, end)
            for start, stop in kv.ranges_kept(progress.request, group, first, last):
                for block in range(start, stop):
                    place = block * count + group
                    copy = kv.copy_of(progress.request, group, block) if place not in left else -1
                    if copy < 0:
                        continue
                    is_lost = block < progress.chunks.num_known and copy in self._lost and self._passes(copy)
                    left[place] = LOST if is_lost else copy

    def _passes(self, copy: int) -> bool:
        """Whether a window may pass a block while its request runs."""
        return self._windows[copy % self._num_groups] is not None

    def _wait_for_lost_blocks(self, job: Job, taken: Ints) -> None:
        """Have the batch wait for a store of a request that has ended if the pass has taken some of its blocks."""
        if self._knows_copies:
            if np.isin(job.copies, taken).any():
                job.is_waited_for = True
            return
        progress, copies = job.progress, job.progress.chunks.copies
        if np.isin(copies[job.blocks[job.blocks < len(copies)]], taken).any():
            job.is_waited_for = True
        if progress.num_blocks > 0 or job.end_block <= len(copies) or not self._piles_up:
            return
        # those that cannot be found lie on the pile of such blocks, on those that were there when they came
        end_block = len(copies) + max(0, self.slots.lowest_blank - progress.num_blank_at_release)
        if np.any((job.blocks >= end_block) & (job.blocks < job.end_block)):
            job.is_waited_for = True
        job.end_block = min(job.end_block, end_block)

    # -- the worker ------------------------------------------------------------------------------------------------

    def begin(self, now_s: float, start_s: float) -> float:
        """Stores that were offered before this pass, and its loads; the batch waits for stores whose blocks it takes.

        What this pass itself has offered begins with the next one, unless its blocks are already taken.
        """
        stores = [*self._due, *(job for job in self._offered if job.is_waited_for)]
        self._stores.begin(stores, start_s)
        self._loads.begin(self._asked, start_s)
        waited_for = [job for job in (*self._under_way, *stores) if job.is_waited_for]
        begins_s = max([start_s, *(job.end_s for job in waited_for)])
        if self.events is not None:
            self._tell(self.events, now_s, begins_s - start_s, len(waited_for))
        self._under_way += stores
        self._under_way += self._asked
        self._due = [job for job in self._offered if not job.is_waited_for]
        self._offered, self._asked = [], []
        for job in waited_for:
            job.is_waited_for = False
        return begins_s

    def _tell(self, events: list[list[Any]], now_s: float, waited_s: float, num_waited_for: int) -> None:
        num_chunks = len(self._cpu)
        events += [[now_s, "store", job.request.request_id, job.num_blocks, num_chunks] for job in self._offered]
        if waited_s > 0:
            events.append([now_s, "flush_wait", waited_s, num_waited_for])
        for job in self._asked:
            num_free = self.slots.pool.num_free
            events.append([now_s, "load_start", job.request.request_id, job.num_tokens, num_free])

    def records(self) -> OffloadRecords:
        """What has been asked for."""
        return self._moved.records(self._block_bytes)

    def reported(self, until_s: float) -> list[Transfer]:
        over = [job for job in self._under_way if job.end_s <= until_s]
        if over:
            self._under_way = [job for job in self._under_way if job.end_s > until_s]
        for job in over:
            job.progress.chunks.num_jobs -= 1
            if job.kind == "store":
                self._cpu.stored(job.keys)
            else:
                self._cpu.leave(job.keys)
        return sorted(over, key=completion_order)
