"""The free blocks: how many there are, and in which order their cached contents will be evicted.

Mirrors vLLM's v1/core/block_pool.py (0.32) without block identities, since it never matters which block a request gets.
Invariants:
- Every block is held by a request or free. Free blocks without content at the front of the list are only a number
  (`_num_blank`); the rest are runs in the order of eviction.
- A keyed run consists of copies in the prefix cache that no request holds.
- Which contents are evicted matters only when a request looks for one: until `settle` is called, blocks that were taken
  from runs are only a number (`_num_owed`).
"""

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sim.engine.passed_blocks import PassedBlocks
from sim.engine.prefix_cache import NO_COPY, Copies, Keys, PrefixCache

SCANNED_COPIES = 64
"""How many copies beyond those wanted are looked at in one go; any number gives the same result."""


class Run:
    """Free blocks that stand together; the first that is left is number `position` of them.

    `copies` is None where no content can be asked for by name, and has NO_COPY for single ones of that kind. A keyed run
    still lists copies that were touched since: what stands in it bears its `stamp`. Of blocks that windows have passed,
    `passed` knows whose they are, by places from `first_place` on.
    """

    __slots__ = ("copies", "count", "first_place", "has_content", "passed", "position", "stamp")

    def __init__(
        self,
        count: int,
        copies: Copies | None,
        *,
        has_content: bool = True,
        stamp: int = 0,
        passed: PassedBlocks | None = None,
        first_place: int = 0,
    ) -> None:
        self.count = count
        self.copies = copies
        self.has_content = has_content
        self.stamp = stamp
        self.passed = passed
        self.first_place = first_place
        self.position = 0


class BlockPool:
    """The list of free blocks. Blocks are taken from its front; released ones go to its end, those without content to its front.

    Without prefix caching (`keeps_contents`) no block has a content.
    """

    def __init__(
        self, num_blocks: int, cache: PrefixCache, *, unhashed_blocks_first: bool, keeps_contents: bool = True
    ) -> None:
        self._num_blank = num_blocks
        self._num_owed = 0
        self._runs: deque[Run] = deque()
        self._cache = cache
        self._never_stands = num_blocks
        self._stamps = np.zeros(num_blocks + 1, dtype=np.int64)
        self._num_stamps = 0
        self._unhashed_blocks_first = unhashed_blocks_first
        self._keeps_contents = keeps_contents
        self.num_free = num_blocks
        self._num_evictions = 0

    def take(self, count: int) -> None:
        """Take `count` blocks from the front; the caller has checked that there are enough."""
        self.num_free -= count
        self._num_blank -= count
        if self._num_blank < 0:
            self._num_owed -= self._num_blank
            self._num_blank = 0

    def settle(self) -> None:
        """Evict the contents of the blocks that have been taken."""
        while self._num_owed:
            run = self._runs[0]
            taken = min(self._num_owed, run.count)
            self._num_owed -= self._take_anonymous(run, taken) if run.copies is None else self._take_keyed(run, taken)
            if run.count == 0:
                self._runs.popleft()

    @property
    def num_evictions(self) -> int:
        """Contents evicted so far."""
        self.settle()
        return self._num_evictions

    def num_evictions_within(self, count: int) -> int:
        """How many of the next `count` blocks to be taken hold a content.

        Blocks beyond those that are free now will be given back by windows in between, with their contents.
        """
        if not self._keeps_contents:
            return 0
        self.settle()
        count, evictions = max(0, count - self._num_blank), 0
        for run in self._runs:
            standing = run.count
            if run.copies is not None:
                standing = int(np.count_nonzero(self._is_standing(run, run.copies[run.position :])))
            taken = min(count, standing)
            evictions += taken if run.has_content else 0
            count -= taken
        return evictions + count

    def _take_anonymous(self, run: Run, taken: int) -> int:
        run.count -= taken
        run.position += taken
        if run.has_content:
            self._num_evictions += taken
        return taken

    def _take_keyed(self, run: Run, wanted: int) -> int:
        """Evict up to `wanted` copies at the front of a run; copies that were touched since are no longer part of it."""
        assert run.copies is not None
        near = run.copies[run.position : run.position + 4 * wanted + SCANNED_COPIES]
        standing = self._is_standing(run, near).nonzero()[0][:wanted]
        evicted = near[standing]
        scanned = int(standing[-1]) + 1 if len(standing) == wanted else len(near)
        run.position += scanned
        run.count -= scanned
        self._num_evictions += len(evicted)
        if run.passed is None:
            self._evict(evicted)
        else:
            self._evict_passed(evicted[evicted != NO_COPY])
        return len(evicted)

    def _evict(self, copies: Copies) -> None:
        self._stamps[copies] = 0
        self._cache.evict(copies)

    def _evict_passed(self, copies: Copies) -> None:
        """Several requests may have passed copies of one content: the first goes first."""
        if self._cache.are_of_different_contents(copies):
            self._evict(copies)
        else:
            for place in range(len(copies)):
                self._evict(copies[place : place + 1])

    def _is_standing(self, run: Run, copies: Copies) -> NDArray[np.bool_]:
        """Which of some copies of a keyed run have not been touched since."""
        bears_stamp: NDArray[np.bool_] = self._stamps[copies] == run.stamp
        return bears_stamp if run.passed is None else bears_stamp | (copies == NO_COPY)

    def release(self, num_hashed: int, num_unhashed: int) -> None:
        """Give back blocks whose contents no request will ask for: the unhashed ones at the tail first."""
        self.num_free += num_hashed + num_unhashed
        if not self._keeps_contents:
            self._num_blank += num_hashed + num_unhashed
            return
        if self._unhashed_blocks_first:
            self._num_blank += num_unhashed
        else:
            self._queue(num_unhashed, has_content=False)
        self._queue(num_hashed, has_content=True)

    def _queue(self, count: int, *, has_content: bool) -> None:
        if count == 0:
            return
        last = self._runs[-1] if self._runs else None
        if last is not None and last.copies is None and last.passed is None and last.has_content is has_content:
            last.count += count
        else:
            self._runs.append(Run(count, None, has_content=has_content))

    def release_passed(
        self, count: int, passed: PassedBlocks, first_place: int = 0, keyed: Sequence[tuple[int, int]] = ()
    ) -> None:
        """Give back blocks that windows have passed, from `first_place` on; `keyed` of them are copies, `(place, copy)`.

        Nobody else holds these.
        """
        self.num_free += count
        if not self._keeps_contents:
            self._num_blank += count
            return
        run = Run(count, None, passed=passed, first_place=first_place)
        self._runs.append(run)
        if keyed:
            places, copies = np.array(keyed, dtype=np.int64).T
            self._name(run, places, self._cache.drop(copies))

    def name_passed_blocks(self, serial: int, keys: Sequence[Keys]) -> None:
        """Make findable what windows of a request have passed and is still there: `keys` are by KV group and block number."""
        self.settle()
        for run in self._runs:
            if run.passed is not None:
                first, named = run.first_place + run.position, run.copies
                blocks = run.passed.of(serial, first, first + run.count)
                if named is not None:
                    blocks = [block for block in blocks if named[block.place - run.first_place] == NO_COPY]
                if blocks:
                    contents = np.array([keys[group][number] for _, group, number in blocks], dtype=np.int64)
                    places = np.array([block.place for block in blocks], dtype=np.int64)
                    self._name(run, places, self._cache.drop(self._cache.register(contents)))

    def _name(self, run: Run, places: Copies, copies: Copies) -> None:
        """Blocks in some places of a run are these copies, which nobody holds."""
        if run.copies is None:
            self._num_stamps += 1
            run.stamp = self._num_stamps
            run.copies = np.full(run.position + run.count, NO_COPY, dtype=np.int64)
        run.copies[~self._is_standing(run, run.copies)] = self._never_stands  # the numbers of copies are used again
        run.copies[places - run.first_place] = copies
        self._stamps[copies] = run.stamp

    def release_keyed(self, copies: Copies) -> None:
        """Give back a request's keyed blocks, the last first; those that other requests hold do not come free."""
        freed = self._cache.drop(copies[::-1])
        if len(freed) == 0:
            return
        self._num_stamps += 1
        self._stamps[freed] = self._num_stamps
        self._runs.append(Run(len(freed), freed, stamp=self._num_stamps))
        self.num_free += len(freed)

    def touch(self, copies: Copies) -> None:
        """Hold copies that were found by content, and take those that were free out of the free list."""
        taken = self._cache.hold(copies)
        if len(taken) == 0:
            return
        self._stamps[taken] = 0
        self.num_free -= len(taken)
