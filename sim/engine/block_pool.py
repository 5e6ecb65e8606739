"""The free blocks: how many there are, and in which order their cached contents will be evicted.

Mirrors vLLM's v1/core/block_pool.py (0.32) without block identities, since it never matters which block a request gets.
Every block is held by a request or free. Free blocks without content at the front of the list are only a number
(`num_blank`); the rest stand in runs in the order of eviction.
"""

from collections.abc import Sequence

from sim.engine.free_list import FreeList, FreeRun
from sim.engine.keyed_blocks import KeyedBlocks
from sim.engine.passed_blocks import PassedBlocks
from sim.engine.prefix_cache import Extent, Held, Piece, PrefixCache


class BlockPool:
    """The list of free blocks. Blocks are taken from its front; released ones go to its end, those without content to its front.

    Without prefix caching (`keeps_contents`) no block has a content. `passed` knows whose the blocks were that windows have passed.
    """

    def __init__(
        self,
        num_blocks: int,
        *,
        unhashed_blocks_first: bool,
        keeps_contents: bool = True,
        passed: PassedBlocks | None = None,
    ) -> None:
        self.num_blank = num_blocks
        self._free = FreeList()
        self._unhashed_blocks_first = unhashed_blocks_first
        self._keeps_contents = keeps_contents
        self.num_free = num_blocks
        self.num_evictions = 0
        self.passed = passed or PassedBlocks(block_size=1)

    def take(self, count: int) -> None:
        """Take `count` blocks from the front and evict their contents; the caller has checked that there are enough."""
        self.num_free -= count
        self.num_blank -= count
        while self.num_blank < 0:
            run = self._free.first
            assert run is not None, "there are enough free blocks"
            taken = min(-self.num_blank, run.count)
            self.num_blank += taken
            if run.has_content:
                self.num_evictions += taken
            run.lose(taken)
            if run.count == 0:
                self._free.remove(run)

    def num_evictions_within(self, count: int) -> int:
        """How many of the next `count` blocks to be taken hold a content.

        Blocks beyond those that are free now will be given back by windows in between, with their contents.
        """
        if not self._keeps_contents:
            return 0
        count, evictions = max(0, count - self.num_blank), 0
        for run in self._free:
            taken = min(count, run.count)
            evictions += taken if run.has_content else 0
            count -= taken
        return evictions + count

    def copies_within(self, count: int) -> list[tuple[Extent, int]]:
        """Which of the next `count` blocks to be taken can be found: the last so many copies of extents."""
        count -= self.num_blank
        found: list[tuple[Extent, int]] = []
        run = self._free.first
        while count > 0 and run is not None:
            if isinstance(run, Extent):
                found.append((run, min(count, run.count)))
            count -= run.count
            run = run.behind
        return found

    # -- blocks that nobody can ask for by name --------------------------------------------------------------------

    def release(self, num_hashed: int, num_unhashed: int) -> None:
        """Give back blocks whose contents no request will ask for: the unhashed ones at the tail first."""
        self.num_free += num_hashed + num_unhashed
        if not self._keeps_contents:
            self.num_blank += num_hashed + num_unhashed
            return
        if self._unhashed_blocks_first:
            self.num_blank += num_unhashed
        else:
            self._line_up(num_unhashed, has_content=False)
        self._line_up(num_hashed, has_content=True)

    def _line_up(self, count: int, *, has_content: bool) -> None:
        if count == 0:
            return
        last = self._free.last
        if last is None or isinstance(last, Extent) or last.is_passed or last.has_content is not has_content:
            self._free.append(FreeRun(count, has_content=has_content))
        else:
            last.count += count

    # -- blocks that windows have passed ---------------------------------------------------------------------------

    def release_passed(self, count: int) -> None:
        """Give back the next of the blocks that windows pass which have no name."""
        if count == 0:
            return
        if self.passed.has_many_notes:
            self.passed.forget_before(self._first_place)
        self.num_free += count
        place = self.passed.give_places(count)
        if not self._keeps_contents:
            self.num_blank += count
            return
        last = self._free.last
        if last is not None and last.is_passed and last.place + last.count == place:
            last.count += count
        else:
            self._free.append(FreeRun(count, is_passed=True, place=place))

    def release_passed_copy(self, extent: Extent) -> None:
        """Give back one of them that is a copy which nobody holds."""
        self.num_free += extent.count
        self._free.append(extent)

    @property
    def _first_place(self) -> int:
        """Of the blocks that windows have passed and that are still free."""
        for run in self._free:
            if run.is_passed:
                return run.place
        return self.passed.num_passed

    def name_passed_blocks(self, serial: int, keyed: KeyedBlocks, caches: Sequence[PrefixCache]) -> None:
        """Make findable what windows of a request have passed and is still there."""
        blocks = self.passed.of(serial, self._first_place)
        index = 0
        for run in self._free:
            if not run.is_passed:
                continue
            while index < len(blocks) and blocks[index].place < run.place + run.count:
                place, group, number = blocks[index]
                index += 1
                if place > run.place:
                    before = FreeRun(place - run.place, is_passed=True, place=run.place)
                    self._free.insert(before, run)
                    run.lose(before.count)
                extent = caches[group].register_free(keyed.spans, number)
                self._free.insert(extent, run)
                self._join_with_next_ahead(extent)
                run.lose(1)
            if run.count == 0:
                self._free.remove(run)

    # -- blocks that can be found ----------------------------------------------------------------------------------

    def touch(self, pieces: Sequence[Piece], held: Held) -> None:
        """Hold copies that were found ahead of those held, and take those that were free out of the free list."""
        for piece in reversed(pieces):  # cutting an extent leaves it its first part
            extent = self._part(piece)
            if not extent.holders:
                self._free.remove(extent)
                self.num_free -= extent.count
            extent.chain.cache.hand_out(extent.serial, extent.count)
            held.put_ahead(extent)

    def _part(self, piece: Piece) -> Extent:
        extent = piece.extent
        if piece.end < extent.end:
            self._split(extent, piece.end)
        return self._split(extent, piece.start) if piece.start > extent.start else extent

    def _split(self, extent: Extent, at: int) -> Extent:
        rest = extent.split(at)
        if not extent.holders:
            self._free.insert(rest, extent)
        return rest

    def give_back(self, extents: Sequence[Extent]) -> None:
        """Give back copies that a request holds no more, the last first; those that other requests hold do not come free."""
        for extent in reversed(extents):
            if not extent.holders:
                self.num_free += extent.count
                self._free.append(extent)
                self._join_with_next_ahead(extent)

    def _join_with_next_ahead(self, extent: Extent) -> None:
        """Make one extent of two that lie side by side and will be evicted one after the other."""
        ahead = extent.ahead
        if isinstance(ahead, Extent) and extent.can_absorb(ahead):
            self._free.remove(ahead)
            extent.absorb(ahead)
