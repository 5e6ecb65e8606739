"""The prefix cache of a KV group: which blocks can be found by their contents, and who holds them.

A content is identified by its key, a number; a block that can be found is a copy of its content, of which there may be
several. Consecutive keys that prompts have in common form a chain. Copies of neighbours in a chain that the same requests hold,
or that stand together in the free list, are one extent. Contents that no other request can ask for are not kept here.
Invariants:
- A chain has its extents in order of age: of the copies of a content, a lookup finds the oldest.
- An extent that somebody holds is in the list of each holder; one that nobody holds stands in the free list.
- The last copy of an extent is the first to be evicted: requests give back the tail of what they hold first.
"""

from collections.abc import Iterable

import numpy as np

from sim.engine.columns import Ints
from sim.engine.common_blocks import CommonBlocks
from sim.engine.free_list import FreeRun
from sim.engine.spans import Span

NOTHING = np.zeros(0, dtype=np.int64)


class Extent(FreeRun):
    """Copies of a chain's contents from number `start` to before `end`; the first is copy number `serial` of all ever made."""

    def __init__(self, chain: "Chain", start: int, end: int, serial: int) -> None:
        super().__init__(end - start)
        self.chain = chain
        self.start = start
        self.end = end
        self.serial = serial
        self.holders: dict[Held, None] = {}

    def lose(self, count: int) -> None:
        self.count -= count
        self.end -= count
        self.chain.cache.hand_out(self.serial + self.count, count)
        if self.count == 0:
            self.chain.remove(self)

    def split(self, at: int) -> "Extent":
        """Cut off the copies from content number `at` on, which become an extent of their own."""
        rest = Extent(self.chain, at, self.end, self.serial + at - self.start)
        self.count, self.end = at - self.start, at
        rest.holders = self.holders.copy()
        for holder in rest.holders:
            holder.extents.insert(holder.extents.index(self) + 1, rest)
            if holder.common is not None:
                holder.common.split(self, rest)
        extents = self.chain.extents
        extents.insert(extents.index(self) + 1, rest)
        return rest

    def can_grow(self, chain: "Chain", start: int) -> bool:
        """Whether copies from number `start` on of a chain, made now, go on from these, and those of nobody but their holder."""
        is_youngest = self.chain is chain and self.end == start and chain.extents[-1] is self
        return is_youngest and len(self.holders) == 1 and not chain.cache.tells_copies_apart

    def grow(self, end: int) -> None:
        """Add the copies up to number `end`."""
        self.count, self.end = end - self.start, end

    def can_absorb(self, rest: "Extent") -> bool:
        """Whether copies that go on from these are of one age with them: no others were made in between."""
        if rest.chain is not self.chain or rest.start != self.end or self.chain.cache.tells_copies_apart:
            return False
        extents = self.chain.extents
        return abs(extents.index(self) - extents.index(rest)) == 1

    def absorb(self, rest: "Extent") -> None:
        """Make those one extent with these; nobody holds either."""
        self.count, self.end = rest.end - self.start, rest.end
        self.chain.extents.remove(rest)


class Chain:
    """Contents with consecutive keys from `key` on, each of which goes on from the one before; it has copies of some."""

    def __init__(self, cache: "PrefixCache", key: int) -> None:
        self.cache = cache
        self.key = key
        self.extents: list[Extent] = []

    def oldest(self, number: int, end: int) -> tuple[Extent | None, int]:
        """The extent with the oldest copy of a content, None if there is none, and up to where before `end` that holds for the next."""
        for extent in self.extents:
            if extent.start > number:
                end = min(end, extent.start)
            elif extent.end > number:
                return extent, min(end, extent.end)
        return None, end

    def num_without_holder(self, start: int, end: int) -> int:
        """Of how many contents from number `start` to before `end` nobody holds a copy."""
        held = [extent for extent in self.extents if extent.holders and extent.start < end and start < extent.end]
        if not held:
            return end - start
        return sum([not any(one.start <= number < one.end for one in held) for number in range(start, end)])

    def remove(self, extent: Extent) -> None:
        """All copies of an extent are gone."""
        self.extents.remove(extent)
        if not self.extents:
            self.cache.forget(self)


class Held:
    """The copies that a request holds in a KV group, of its blocks from `first` to before `end`; a window has passed those before.

    While its request decodes, `common` counts it as a reader of each of them, and `read_number` is that of the pass in which it was last looked at, if it is.
    """

    def __init__(self, first: int = 0) -> None:
        self.first = self.end = first
        self.extents: list[Extent] = []
        self.common: CommonBlocks | None = None
        self.read_number = 0

    def begin_reading(self, common: CommonBlocks) -> None:
        """Its request decodes from now on."""
        self.common = common
        for extent in self.extents:
            common.add(extent, extent.count)

    def end_reading(self) -> None:
        """It does so no more."""
        if self.common is not None:
            for extent in self.extents:
                self.common.remove(extent, extent.count)
            self.common = None

    def num_before(self, end: int) -> int:
        """How many of these blocks come before number `end`."""
        return max(0, min(end, self.end) - self.first)

    def put_ahead(self, extent: Extent) -> None:
        """Hold the copies of the blocks before these as well."""
        extent.holders[self] = None
        self.extents.insert(0, extent)
        self.first -= extent.count

    def put_behind(self, extent: Extent) -> None:
        """Hold the copies of the blocks after these as well."""
        extent.holders[self] = None
        self.extents.append(extent)
        self.end += extent.count
        if self.common is not None:
            self.common.add(extent, extent.count)

    def cut_off(self, end: int) -> list[Extent]:
        """Hold no more what comes before block number `end`: the extents."""
        given: list[Extent] = []
        while self.extents and self.first < end:
            extent = self.extents[0]
            if extent.count > end - self.first:
                extent.split(extent.start + end - self.first)
            self.first += extent.count
            if self.common is not None:
                self.common.remove(extent, extent.count)
            del extent.holders[self]
            given.append(self.extents.pop(0))
        self.first, self.end = max(self.first, end), max(self.end, end)
        return given

    def serials(self) -> Ints:
        """The number of each copy."""
        return np.concatenate(
            [NOTHING, *(np.arange(extent.serial, extent.serial + extent.count) for extent in self.extents)]
        )

    def serial(self, block: int) -> int:
        """The number of the copy of a block, -1 where there is none."""
        number = block - self.first
        for extent in self.extents:
            if 0 <= number < extent.count:
                return extent.serial + number
            number -= extent.count
        return -1


class SparseHeld(Held):
    """The same where a request has no copies of some of these blocks; `_offsets` say which block a chain's content number 0 would be."""

    def __init__(self, first: int = 0) -> None:
        super().__init__(first)
        self._offsets: dict[Chain, int] = {}

    def num_before(self, end: int) -> int:
        count = 0
        for extent in self.extents:
            offset = self._offsets[extent.chain]
            count += max(0, min(extent.end, end - offset) - extent.start)
        return count

    def put_ahead(self, extent: Extent) -> None:
        super().put_ahead(extent)
        self._offsets[extent.chain] = self.first - extent.start

    def put_behind(self, extent: Extent) -> None:
        self._offsets[extent.chain] = self.end - extent.start
        super().put_behind(extent)

    def serial(self, block: int) -> int:
        for extent in self.extents:
            number = block - self._offsets[extent.chain]
            if extent.start <= number < extent.end:
                return extent.serial + number - extent.start
        return -1

    def cut_off(self, end: int) -> list[Extent]:
        given: list[Extent] = []
        while self.extents:
            extent = self.extents[0]
            number = end - self._offsets[extent.chain]
            if number <= extent.start:
                break
            if number < extent.end:
                extent.split(number)
            del extent.holders[self]
            given.append(self.extents.pop(0))
        self.first, self.end = max(self.first, end), max(self.end, end)
        return given

    def cut_out(self, block: int) -> list[Extent]:
        """Hold no more the copy of a block, if there is one: its extent."""
        for extent in self.extents:
            number = block - self._offsets[extent.chain]
            if extent.start <= number < extent.end:
                own = extent.split(number) if number > extent.start else extent
                if number + 1 < own.end:
                    own.split(number + 1)
                del own.holders[self]
                self.extents.remove(own)
                return [own]
        return []

    def put_between(self, cache: "PrefixCache", spans: list[Span], block: int) -> None:
        """Make a copy of a block, none behind which has one."""
        end, self.end = self.end, block
        cache.register(spans, self, block + 1)
        self.end = max(end, self.end)


class Piece:
    """The copies of an extent of contents from number `start` to before `end` of its chain."""

    __slots__ = ("end", "extent", "start")

    def __init__(self, extent: Extent, start: int, end: int) -> None:
        self.extent = extent
        self.start = start
        self.end = end


class PrefixCache:
    """The copies of one KV group, by chain; `num_registered` is how many were ever made."""

    def __init__(self) -> None:
        self._chains: dict[int, Chain] = {}
        self.num_registered = 0
        self._handed_out: list[tuple[int, int]] | None = None

    def forget(self, chain: Chain) -> None:
        """A chain has no copies left."""
        del self._chains[chain.key]

    @property
    def keys(self) -> Iterable[int]:
        """Of the chains that have copies."""
        return self._chains.keys()

    # -- lookups ---------------------------------------------------------------------------------------------------

    def match(self, spans: list[Span], first: int, end: int) -> list[Piece]:
        """The oldest copies of blocks from `first` to before `end`, up to the first that has none."""
        pieces: list[Piece] = []
        for span in spans:
            number, last = max(first, span.block) - span.block, min(end, span.end) - span.block
            if number >= last:
                continue
            chain = self._chains.get(span.key)
            while number < last:
                if chain is None:
                    return pieces
                extent, until = chain.oldest(number, last)
                if extent is None:
                    return pieces
                pieces.append(Piece(extent, number, until))
                number = until
        return pieces

    def match_end(self, spans: list[Span], end: int, num_needed: int) -> int:
        """Where the last `num_needed` consecutive blocks that have copies end, or fewer where they begin with the first; 0 if there are none."""
        if num_needed == 0:
            return end
        found, first, block = 0, 0, 0
        for span in spans:
            last = min(end, span.end)
            chain = self._chains.get(span.key)
            while block < last:
                extent, until = None, last
                if chain is not None:
                    extent, number = chain.oldest(block - span.block, last - span.block)
                    until = span.block + number
                if extent is None:
                    first = until
                    if end - first < num_needed:
                        return found
                elif first == 0 or until - first >= num_needed:
                    found = until
                block = until
        return found

    # -- copies come and go ----------------------------------------------------------------------------------------

    def register(self, spans: list[Span], held: Held, end: int) -> None:
        """Make copies of the blocks behind those held, to before number `end`, held as well; each is the youngest of its content."""
        for span in spans:
            if held.end < min(end, span.end):
                chain = self._chain(span.key)
                first, last = held.end - span.block, min(end, span.end) - span.block
                if held.extents and held.extents[-1].can_grow(chain, first):
                    self.num_registered += last - first
                    held.extents[-1].grow(last)
                    held.end = span.block + last
                else:
                    held.put_behind(self._register(chain, first, last))

    def register_free(self, spans: list[Span], block: int) -> Extent:
        """Make a copy of a block that nobody holds."""
        span = next(span for span in spans if block < span.end)
        return self._register(self._chain(span.key), block - span.block, block - span.block + 1)

    def _chain(self, key: int) -> Chain:
        chain = self._chains.get(key)
        if chain is None:
            chain = self._chains[key] = Chain(self, key)
        return chain

    def _register(self, chain: Chain, start: int, end: int) -> Extent:
        extent = Extent(chain, start, end, self.num_registered)
        self.num_registered += extent.count
        chain.extents.append(extent)
        return extent

    # -- who has copies handed out ---------------------------------------------------------------------------------

    @property
    def tells_copies_apart(self) -> bool:
        """Whether each copy is known by its number for good."""
        return self._handed_out is not None

    def hand_out(self, serial: int, count: int) -> None:
        """Copies from that number on are held by somebody else now, or evicted."""
        if self._handed_out is not None:
            self._handed_out.append((serial, count))

    def drain_handed_out(self) -> Ints:
        """The numbers of the copies that were handed out since the last time; they are noted from the first time on."""
        drained, self._handed_out = self._handed_out or [], []
        return np.concatenate([NOTHING, *(np.arange(serial, serial + count) for serial, count in drained)])
