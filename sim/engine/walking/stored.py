"""KV in a store that engines share: lookups, loads of a prefix, and write-through stores of prompts, or of answers as well.

After vLLM's MooncakeStoreConnector (0.33) where a chunk is a block, as recorded, and after LMCache's else. A lookup holds the scheduler up, as by their
defaults, or is asked for again until it is answered (`lookup_async`, `enable_async_loading`); it is made once a request, and once more after a
preemption, and counts from a prompt's beginning, whatever the GPU has. A load is asynchronous, of what the GPU lacks. Who was preempted prefills what it has
answered as well, which is stored with it. Deliberate differences: what is stored is copied out of the GPU's blocks at no time, so that nobody waits for it,
and but once until its request is preempted, whatever becomes of it there; drafters that read ahead have no block of a hit left to them, as LMCache does it.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from sim.engine.config import SchedulerConfig
from sim.engine.records import OffloadRecords
from sim.engine.walking.chunk_keys import chunk_keys
from sim.engine.walking.connector import Connector, Transfer, first_end_s, over_by
from sim.engine.walking.loads import Loads
from sim.engine.walking.progress import Progress
from sim.engine.walking.slots import KeptState, Slots
from sim.engine.walking.store_lookup import Keys, StoreLookup
from sim.engine.walking.stored_chunks import StoredChunks


class Moved(Transfer):
    """A load or a store of the chunks with these keys."""

    def __init__(self, progress: Progress, kind: str, num_tokens: int, num_blocks: int, keys: Sequence[int]) -> None:
        super().__init__(progress, kind, num_tokens, num_blocks)
        self.keys = keys


class Store(Protocol):
    """What lies outside of the engine, in chunks of `chunk_blocks` blocks, which have `block_bytes` each on all GPUs."""

    @property
    def chunk_blocks(self) -> int: ...
    @property
    def block_bytes(self) -> int: ...
    @property
    def lookup_s(self) -> float: ...
    @property
    def holds_up_passes(self) -> bool:
        """Whether a pass waits for the answers to its lookups; else requests are asked about again until they are answered."""
        ...

    @property
    def least_tokens(self) -> int: ...
    @property
    def saves_prefills(self) -> bool:
        """Whether it gets what this engine prefills."""
        ...

    @property
    def saves_decodes(self) -> bool:
        """Whether it gets what a request has, and has answered, from its second token on."""
        ...

    @property
    def now_s(self) -> float: ...

    def has(self, key: int) -> bool:
        """Whether it is there, and has come."""
        ...

    def renew(self, keys: Sequence[int]) -> None:
        """Somebody goes on behind these, a prompt's head first, and loads what it lacks of them."""
        ...

    def offer(self, keys: Sequence[int]) -> Sequence[int]:
        """Make room for those that are not there; those that there is room for, which are on their way from now on."""
        ...

    def keep(self, keys: Sequence[int]) -> None:
        """They are there, and will be loaded: they stay until they have been."""
        ...

    def begin(self, moved: Moved) -> None:
        """A load or a store begins at its `start_s`; somebody sets a load's `end_s` in time, and wakes the replica."""
        ...

    def drop(self, moved: Moved) -> None:
        """One that was asked for or offered, and has not begun, never will."""
        ...


class Stored(Connector):
    """Stores are offered at the end of a pass and begin with the next one's batch, when what they copy has been computed."""

    reports_at_start: bool = True

    def __init__(self, store: Store, config: SchedulerConfig) -> None:
        self._store = store
        self._block_size = config.block_size
        self._chunk_tokens = store.chunk_blocks * config.block_size
        self._lookup = StoreLookup(config, self._chunk_tokens)
        self._num_groups = len(config.kv_groups)
        self._offered: list[Moved] = []
        self._due: list[Moved] = []
        self._asked: list[Moved] = []
        self._under_way: list[Moved] = []
        self._answers_s: list[float] = []
        self._held_up_s = 0.0
        self._moved = Loads()

    def attach(self, slots: Slots) -> None:
        super().attach(slots)
        slots.note_kept_states()

    @property
    def has_pending(self) -> bool:
        return bool(self._under_way or self._asked or self._due or self._offered or self._answers_s)

    @property
    def next_end_s(self) -> float:
        if self._asked or self._due or self._offered:
            return 0.0
        return min([first_end_s(self._under_way), *self._answers_s])

    def added(self, progress: Progress) -> None:
        progress.stored = StoredChunks()

    def has_stored(self, progress: Progress) -> bool:  # noqa: ARG002 - a connector's interface
        return not self._store.saves_decodes

    def may_find(self, progress: Progress) -> bool:
        """A lookup begins in a pass that comes to the request; and the more there is, the less windows need, whoever stores it."""
        return not self._lookup.has_windows and (progress.stored.answer_s >= 0 or not self._store.lookup_s)

    def find(self, progress: Progress, num_hit_tokens: int) -> int:
        """In whole chunks, once the store has answered; the one in which the local hit ends is loaded from there on."""
        chunks, lookup = progress.stored, self._lookup
        chunks.num_begun, chunks.num_prefilled = num_hit_tokens, progress.num_tokens
        most = lookup.most(progress.num_tokens)
        if most * self._chunk_tokens <= num_hit_tokens:
            return 0
        if not self._is_answered(chunks):
            return -1
        num_found = lookup.num_found(self._store.has, self._keys(progress, most), most)
        num_tokens = num_found * self._chunk_tokens - num_hit_tokens
        return num_tokens if num_tokens >= max(1, self._store.least_tokens) else 0

    def _keys(self, progress: Progress, num_chunks: int) -> Keys:
        """By group."""
        keys, count = chunk_keys(progress, progress.stored.keys, num_chunks, self._store.chunk_blocks), self._num_groups
        return [keys] if count == 1 else [[key * count + group for key in keys] for group in range(count)]

    def _needed(self, keys: Keys, first: int, end: int) -> list[int]:
        """From that chunk on, what a request looks at that goes on behind so many."""
        tokens = end * self._chunk_tokens
        starts = [max(first, self._lookup.first_needed(number, tokens)) for number in range(self._num_groups)]
        return [key for start, of_group in zip(starts, keys, strict=True) for key in of_group[start:end]]

    def _is_answered(self, chunks: StoredChunks) -> bool:
        now_s, lookup_s = self._store.now_s, self._store.lookup_s
        if lookup_s and chunks.answer_s < 0:
            if self._store.holds_up_passes:
                chunks.answer_s = now_s
                self._held_up_s += lookup_s
            else:
                chunks.answer_s = now_s + lookup_s
                self._answers_s.append(chunks.answer_s)
        return now_s >= chunks.answer_s

    def loads_in_step(self, progress: Progress) -> bool:  # noqa: ARG002 - a connector's interface
        return False

    def load(self, progress: Progress, num_hit_tokens: int, num_tokens: int) -> None:
        chunks = progress.stored
        first, end = num_hit_tokens // self._chunk_tokens, (num_hit_tokens + num_tokens) // self._chunk_tokens
        chunks.num_stored, chunks.num_begun = max(chunks.num_stored, end), num_hit_tokens + num_tokens
        by_group = self._keys(progress, end)
        keys = self._needed(by_group, first, end)
        self._store.keep(keys)
        self._store.renew(self._needed(by_group, 0, end))
        num_blocks = len(keys) if self._lookup.is_by_block else num_tokens // self._block_size
        self._asked.append(Moved(progress, "load", num_tokens, num_blocks, keys))
        self._moved.add(progress, num_tokens, num_blocks)

    def preempted(self, progress: Progress) -> None:
        """It will ask again, and offer again what is not there any more."""
        progress.stored.answer_s, progress.stored.num_stored = -1.0, 0

    def computes(self, progress: Progress, num_tokens: int) -> None:
        chunks = progress.stored
        is_saved = self._store.saves_prefills if num_tokens <= chunks.num_prefilled else self._store.saves_decodes
        first, end = chunks.num_stored, min(num_tokens, progress.num_tokens) // self._chunk_tokens
        if end <= first or not is_saved:
            return
        chunks.num_stored = end
        self._offer(progress, self._new(progress, first, end))

    def _new(self, progress: Progress, first: int, end: int) -> list[int]:
        """Of these chunks what is stored, and lies not behind the window with which the request began."""
        lookup, num_prefilled = self._lookup, progress.stored.num_prefilled
        found: list[int] = []
        for number, keys in enumerate(self._keys(progress, end)):
            start = max(first, lookup.first_needed(number, progress.stored.num_begun))
            for begin, stop in lookup.stored(number, progress.request, start, end, num_prefilled):
                found += keys[begin:stop]
        return found

    def hears_of_other_load(self, progress: Progress, num_tokens: int) -> None:
        """What windows have passed by then is not there to be stored."""
        progress.stored.num_begun = num_tokens

    def close_pass(self, kept_states: Sequence[KeptState]) -> None:
        """Offer the states that have been made findable, each by itself."""
        for state in kept_states:
            progress, block = state.progress, state.block
            if self._store.saves_prefills and (block + 1) * self._block_size <= progress.stored.num_prefilled:
                self._offer(progress, [self._keys(progress, block + 1)[state.group][block]])

    def _offer(self, progress: Progress, keys: Sequence[int]) -> None:
        """What is not there yet is on its way with the next batch, as far as there is room."""
        new = self._store.offer(keys)
        if new:
            num_blocks = len(new) * self._store.chunk_blocks
            self._offered.append(Moved(progress, "store", 0, num_blocks, new))
            self._moved.num_stored_blocks += num_blocks

    def called_until_s(self, now_s: float) -> float:
        """When the call of the scheduler that began then is over, behind its lookups."""
        return now_s + self._held_up_s

    def begin(self, now_s: float, start_s: float) -> float:
        start_s, self._held_up_s = max(start_s, self.called_until_s(now_s)), 0.0
        for moved in (*self._due, *self._asked):
            moved.start_s = start_s
            self._store.begin(moved)
        self._under_way += self._asked
        self._answers_s = [answer_s for answer_s in self._answers_s if answer_s > now_s]
        if self.events is not None:
            self._tell(self.events, now_s)
        self._due, self._offered, self._asked = self._offered, [], []
        return start_s

    def _tell(self, events: list[list[Any]], now_s: float) -> None:
        for moved in self._asked:
            num_free = self.slots.pool.num_free
            events.append([now_s, "load_start", moved.request.request_id, moved.num_tokens, num_free])

    def finished(self, progress: Progress, now_s: float) -> bool:  # noqa: ARG002 - a connector's interface
        return False

    def aborted(self, progress: Progress) -> None:
        """What is under way goes on; nobody waits for an answer any more."""
        if progress.stored.answer_s in self._answers_s:
            self._answers_s.remove(progress.stored.answer_s)

    def lose_all(self) -> list[Transfer]:
        """What has begun breaks off elsewhere."""
        for moved in (*self._due, *self._offered, *self._asked):
            self._store.drop(moved)
        loads: list[Transfer] = [*self._asked, *self._under_way]
        self._offered, self._due, self._asked, self._under_way = [], [], [], []
        return loads

    def reported(self, until_s: float) -> list[Transfer]:
        over = over_by([*self._under_way], until_s)
        if over:
            self._under_way = [moved for moved in self._under_way if moved.end_s > until_s]
        return over

    def stored_records(self) -> OffloadRecords:
        """What has been asked for."""
        return self._moved.records(self._store.block_bytes)
