"""The life of KV blocks, as vLLM's `--kv-cache-metrics` samples it: which block each step took, found again and evicted.

Mirrors vLLM's v1/core/kv_cache_metrics.py and block_pool.py (0.33). The engine keeps no identities of blocks, since it never matters
which one a request gets; here they are handed out again, by a log of its steps. Deliberate differences: which blocks are sampled follows
from a seed; times are those of the passes, to which all that a pass does belongs.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sim.engine.records import Floats
from sim.metrics.statistics import statistics

LAST_ACCESSES = 4  # of a block are kept, as vLLM does
Key = tuple[int, ...]


class Eviction(NamedTuple):
    """A sampled block that was taken anew: when, how long after it was allocated and last found, and the gaps between its last finds."""

    time_s: float
    lifetime_s: float
    idle_s: float
    reuse_gaps_s: tuple[float, ...]


class Slots(NamedTuple):
    """KV slots after a step: those of all blocks taken, those with a token in them, and the same under an allocator that reserves
    max_model_len tokens for each running request, where nothing is shared.
    """

    duration_s: float
    taken: int
    used: int
    reserved: int
    filled: int


class _Sampled:
    """A block that is watched since it was allocated."""

    def __init__(self, now_s: float) -> None:
        self.born_s = self.last_s = now_s
        self.accesses_s: deque[float] = deque(maxlen=LAST_ACCESSES)

    def found(self, now_s: float) -> None:
        self.last_s = now_s
        self.accesses_s.append(now_s)

    def evicted(self, now_s: float) -> Eviction:
        gaps_s = np.diff(np.array(self.accesses_s)).tolist()
        return Eviction(now_s, now_s - self.born_s, now_s - self.last_s, tuple(gaps_s))


class Pool:
    """Blocks by number, those that are free in the order in which they are taken; `evictions` are of the blocks that were sampled."""

    def __init__(
        self, num_blocks: int, *, caches_prefixes: bool, unhashed_blocks_first: bool, is_sampled: Callable[[], bool]
    ) -> None:
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self.evictions: list[Eviction] = []
        self.num_evictions = 0  # of contents, sampled or not
        self._caches_prefixes = caches_prefixes
        self._unhashed_blocks_first = unhashed_blocks_first
        self._is_sampled = is_sampled
        self._num_holders = [0] * num_blocks
        self._content: dict[int, Key] = {}
        self._copies: dict[Key, OrderedDict[int, None]] = {}
        self._sampled: dict[int, _Sampled] = {}

    def take(self, now_s: float) -> int:
        """The first of the free blocks, without what it contained."""
        block, _ = self.free.popitem(last=False)
        sampled = self._sampled.pop(block, None)
        if sampled is not None and self._caches_prefixes:  # else vLLM hears of no eviction
            self.evictions.append(sampled.evicted(now_s))
        if (key := self._content.pop(block, None)) is not None:
            self.num_evictions += 1
            copies = self._copies[key]
            del copies[block]
            if not copies:
                del self._copies[key]
        if self._is_sampled():
            self._sampled[block] = _Sampled(now_s)
        self._num_holders[block] = 1
        return block

    def find(self, key: Key, now_s: float) -> int:
        """The oldest block of that content, held from now on."""
        block = next(iter(self._copies[key]))
        if not self._num_holders[block]:
            del self.free[block]
        self._num_holders[block] += 1
        if block in self._sampled:
            self._sampled[block].found(now_s)
        return block

    def fill(self, block: int, key: Key) -> None:
        """The block is full, and can be found."""
        if self._caches_prefixes and block not in self._content:
            self._content[block] = key
            self._copies.setdefault(key, OrderedDict())[block] = None

    def release(self, blocks: Sequence[int]) -> None:
        """Give the blocks of a request back, in the order of their tokens: the tail is taken again first."""
        freed = [block for block in reversed(blocks) if self._let_go(block)]
        self.free |= dict.fromkeys(freed)
        if self._unhashed_blocks_first:
            for block in reversed(freed):
                if block not in self._content:
                    self.free.move_to_end(block, last=False)

    def _let_go(self, block: int) -> bool:
        self._num_holders[block] -= 1
        return not self._num_holders[block]


class _Running:
    """A request that runs: its blocks by KV group, none in the place of those that windows have passed; how many of its tokens are computed,
    how many are known, and how many of those computed are on the device yet.
    """

    def __init__(self, num_prompt_tokens: int, num_groups: int, since: int) -> None:
        self.tables: list[list[int | None]] = [[] for _ in range(num_groups)]
        self.num_computed = 0
        self.num_in_flight = 0
        self.num_known = num_prompt_tokens
        self.num_full = 0
        self.since = since


class Kept(NamedTuple):
    """Which blocks can be found: filled with known tokens but for the last, `num_rewritten` ones, whose KV drafters write anew, and with
    `num_ahead` known ones behind them; `as_tokens_return`, or when their request is scheduled next.
    """

    num_rewritten: int
    num_ahead: int
    as_tokens_return: bool


class BlockReplay:
    """Hands out the blocks of one replica again: `take` gets the rows of its step log, in order, and `finish` comes after the last.

    `key` tells the content of a request's block by its number; `prompts` have the lengths by request; `windows` has that of each KV group,
    None for full attention. All groups take their blocks from one pool, as in vLLM. `kept` says which blocks can be found.
    """

    def __init__(
        self,
        pool: Pool,
        block_size: int,
        max_model_len: int,
        windows: Sequence[int | None],
        prompts: Mapping[str, int],
        key: Callable[[str, int], Key],
        kept: Kept,
    ) -> None:
        self.pool = pool
        self.slots: list[Slots] = []
        self._block_size = block_size
        self._max_model_len = max_model_len
        self._windows = windows
        self._num_blocks = len(pool.free)
        self._prompts = prompts
        self._key = key
        self._kept = kept
        self._running: dict[str, _Running] = {}
        self._returned: dict[str, int] = {}
        self._on_device: deque[tuple[int, Mapping[str, Any]]] = deque()
        self._num_taken = 0

    def take(self, row: Mapping[str, Any]) -> None:
        """A step that has come back, as logged; those after it may have been scheduled meanwhile."""
        while self._on_device and self._on_device[0][1]["end"] <= row["t"]:
            self._collect(*self._on_device.popleft())
        self._schedule(row)
        self._on_device.append((self._num_taken, row))
        self._num_taken += 1

    def finish(self) -> None:
        """All that is on the device comes back."""
        while self._on_device:
            self._collect(*self._on_device.popleft())

    def _schedule(self, row: Mapping[str, Any]) -> None:
        """Requests in their order give back what windows have passed, and get blocks; who is preempted for that gives its own back as they run out."""
        now_s, preempted = row["t"], deque(row["preempted"])
        admitted = {*row["new"], *row["resumed"]}
        for name, num_tokens, num_computed, num_new_blocks in row["sched"]:
            if name in admitted:
                self._admit(name, num_computed, now_s)
            request = self._running[name]
            self._pass_windows(request, num_computed - request.num_in_flight)
            while len(self.pool.free) < num_new_blocks:
                self._release(preempted.popleft())
            for table in request.tables:
                table += [self.pool.take(now_s) for _ in range(num_new_blocks // len(request.tables))]
            request.num_computed = num_computed + num_tokens
            request.num_in_flight += num_tokens
            self._fill(name, min(request.num_computed, request.num_known))
        if preempted:  # the last of them for itself: what its windows have passed it gives back first
            request = self._running[preempted[-1]]
            self._pass_windows(request, request.num_computed - request.num_in_flight)
        for name in preempted:
            self._release(name)
        self.slots.append(self._slots(row["end"] - row["start"]))

    def _admit(self, name: str, num_found: int, now_s: float) -> None:
        num_known = self._prompts[name] + self._returned.get(name, 0)
        request = self._running[name] = _Running(num_known, len(self._windows), self._num_taken)
        request.num_full = num_found // self._block_size
        for group, window in enumerate(self._windows):
            num_needed = request.num_full if window is None else -(-(window - 1) // self._block_size)
            num_passed = max(0, request.num_full - num_needed)
            numbers = range(num_passed, request.num_full)
            found = [self.pool.find((group, *self._key(name, number)), now_s) for number in numbers]
            request.tables[group] = [None] * num_passed + found

    def _pass_windows(self, request: _Running, num_processed: int) -> None:
        for table, window in zip(request.tables, self._windows, strict=True):
            num_passed = 0 if window is None else max(0, num_processed - window + 1) // self._block_size
            self.pool.release([block for block in table[:num_passed] if block is not None])
            table[:num_passed] = [None] * num_passed

    def _fill(self, name: str, num_tokens: int) -> None:
        request = self._running[name]
        hashed = min(num_tokens - self._kept.num_rewritten, request.num_known - self._kept.num_ahead)
        for number in range(request.num_full, hashed // self._block_size):
            for group, table in enumerate(request.tables):
                if (block := table[number]) is not None:
                    self.pool.fill(block, (group, *self._key(name, number)))
            request.num_full = number + 1

    def _collect(self, number: int, row: Mapping[str, Any]) -> None:
        for name, num_tokens, *_ in row["sched"]:
            if name in self._running and self._running[name].since <= number:
                self._running[name].num_in_flight -= num_tokens
        delivered = row.get("delivered", {})
        for name in row["sampled"]:
            num_delivered = delivered.get(name, 1)
            self._returned[name] = self._returned.get(name, 0) + num_delivered
            if name in self._running:
                self._running[name].num_known += num_delivered
                self._fill_returned(name)
        for name in row["finished"]:
            if name in self._running:  # or it was preempted with its last token on the way
                self._release(name)

    def _fill_returned(self, name: str) -> None:
        """Of the tokens that have come back all but the last have their KV."""
        if self._kept.as_tokens_return:
            request = self._running[name]
            self._fill(name, min(request.num_computed, request.num_known - 1))

    def _release(self, name: str) -> None:
        self._fill_returned(name)
        request = self._running[name]
        for table in request.tables:
            self.pool.release([block for block in table if block is not None])
        del self._running[name]

    def _slots(self, duration_s: float) -> Slots:
        running, num_groups = self._running.values(), len(self._windows)
        taken = (self._num_blocks - len(self.pool.free)) * self._block_size
        room = sum(len(table) * self._block_size for request in running for table in request.tables)
        filled = num_groups * sum(request.num_computed for request in running)
        return Slots(duration_s, taken, taken - room + filled, num_groups * len(running) * self._max_model_len, filled)


class KVCacheMetrics(NamedTuple):
    """Evictions of sampled blocks and slots after each step, by replica; and the prefix cache's hits over time."""

    sample: float
    evictions: tuple[Sequence[Eviction], ...]
    slots: tuple[Sequence[Slots], ...]
    hits_over_time: Sequence[Mapping[str, float | None]]

    def to_json(self) -> dict[str, Any]:
        """`kv_cache_metrics` of a summary; seconds under vLLM's names."""
        every = [one for evictions in self.evictions for one in evictions]
        gaps_s = [gap_s for one in every for gap_s in one.reuse_gaps_s]
        seconds = {
            "kv_block_lifetime_seconds": [one.lifetime_s for one in every],
            "kv_block_idle_before_evict_seconds": [one.idle_s for one in every],
            "kv_block_reuse_gap_seconds": gaps_s,
        }
        return {
            "sample": self.sample,
            **{name: {"count": len(some)} | statistics(np.array(some))._asdict() for name, some in seconds.items()},
            **self._shares(),
            "prefix_cache_over_time": list(self.hits_over_time),
        }

    def _shares(self) -> dict[str, float | None]:
        """Of the slots that are taken, how many hold a token, over time; and of those that a contiguous allocator would reserve."""
        rows = np.array([tuple(one) for slots in self.slots for one in slots], dtype=np.float64).reshape(
            -1, len(Slots._fields)
        )
        durations_s, taken, used, reserved, filled = rows.T
        return {
            "used_slot_share": _mean_ratio(durations_s, used, taken),
            "contiguous_used_slot_share": _mean_ratio(durations_s, filled, reserved),
        }


def _mean_ratio(weights: Floats, part: Floats, whole: Floats) -> float | None:
    total = float(weights @ whole)
    return float(weights @ part) / total if total else None
