"""The pool of KV blocks: who is free, in which order, and which contents can still be found.

Mirrors vLLM's v1/core/block_pool.py (0.32). Deliberate differences: none within one pool; block 0, vLLM's null block,
is never handed out and stands in block tables where a sliding window has passed.
"""

import sys
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from sim.specs.engine import PrefixCacheEviction

NULL_BLOCK = 0
ContentKey = tuple[int, int]
"""`(KV group, chained block key)`."""


class BlockPool:
    """Blocks 1..N-1 in a free list whose front is taken (and evicted) first.

    Every block is either free or held (`ref_cnt` > 0). A free block may keep its content, findable until it is taken.
    """

    def __init__(
        self, num_gpu_blocks: int, *, unhashed_blocks_first: bool = True, evicts_by: PrefixCacheEviction = "lru"
    ) -> None:
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_gpu_blocks))
        self._ref_cnt = [0] * num_gpu_blocks
        self._content: list[ContentKey | None] = [None] * num_gpu_blocks
        self._holders: dict[ContentKey, OrderedDict[int, None]] = {}
        self._unhashed_blocks_first = unhashed_blocks_first
        self._evicts_by = evicts_by
        self._num_uses = [0] * num_gpu_blocks
        self._number = [0] * num_gpu_blocks
        self.num_evictions = 0

    @property
    def num_free_blocks(self) -> int:
        return len(self._free)

    @property
    def free_blocks(self) -> Sequence[int]:
        """Free blocks in the order in which they will be taken."""
        return list(self._free)

    def find(self, key: ContentKey) -> int | None:
        """The oldest block that holds this content, or None."""
        holders = self._holders.get(key)
        return next(iter(holders)) if holders else None

    def content(self, block: int) -> ContentKey | None:
        """What can be found in a block."""
        return self._content[block]

    def num_free_among(self, blocks: Iterable[int]) -> int:
        """How many of these blocks nobody holds: touching them takes them from the free list."""
        return sum(1 for block in blocks if block != NULL_BLOCK and self._ref_cnt[block] == 0)

    def take(self, num_blocks: int) -> list[int]:
        """Hand out blocks from the front, evicting their content; the caller has checked that there are enough."""
        assert num_blocks <= len(self._free), f"{num_blocks} blocks wanted, {len(self._free)} free"
        taken = []
        for _ in range(num_blocks):
            block = self._next()
            del self._free[block]
            self.forget(block)
            self._ref_cnt[block] = 1
            taken.append(block)
        return taken

    def _next(self) -> int:
        """The first in line, or, what no vLLM has, the first of the lowest rank."""
        return next(iter(self._free)) if self._evicts_by == "lru" else min(self._free, key=self._rank)

    def _rank(self, block: int) -> int:
        """Blocks without content, then those with the fewest uses, or at the ends of the longest prefixes."""
        if self._content[block] is None:
            return -sys.maxsize
        return self._num_uses[block] if self._evicts_by == "lfu" else -self._number[block]

    def touch(self, blocks: Iterable[int]) -> None:
        """Hold blocks found by content."""
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            if self._ref_cnt[block] == 0:
                del self._free[block]
            self._ref_cnt[block] += 1
            self._num_uses[block] += 1

    def keep_content(self, block: int, key: ContentKey, number: int = 0) -> None:
        """Make a full block findable, that number of a prompt; a duplicate of a content is kept beside the older ones."""
        if self._content[block] is not None:
            self._lose_content(block)
        self._content[block] = key
        self._number[block] = number
        self._num_uses[block] = 1
        self._holders.setdefault(key, OrderedDict())[block] = None

    def release(self, blocks: Sequence[int]) -> None:
        """Give up a block table: its tail first. Contents line up at the end, blocks without go to the front."""
        freed = [block for block in reversed(blocks) if block != NULL_BLOCK and self._drop_reference(block)]
        for block in freed:
            self._free[block] = None
        if self._unhashed_blocks_first:
            for block in reversed([block for block in freed if self._content[block] is None]):
                self._free.move_to_end(block, last=False)

    def _drop_reference(self, block: int) -> bool:
        self._ref_cnt[block] -= 1
        assert self._ref_cnt[block] >= 0, f"block {block} released more often than held"
        return self._ref_cnt[block] == 0

    def forget(self, block: int) -> None:
        """What is in a block cannot be found any more; vLLM counts that as an eviction."""
        if self._content[block] is not None:
            self._lose_content(block)
            self.num_evictions += 1

    def _lose_content(self, block: int) -> None:
        key = self._content[block]
        assert key is not None, f"nothing can be found in block {block}"
        holders = self._holders[key]
        del holders[block]
        if not holders:
            del self._holders[key]
        self._content[block] = None

    def check_integrity(self) -> None:
        """Free and held blocks make up the pool, and every findable content is in the block that claims it."""
        held = sum(1 for count in self._ref_cnt[1:] if count)
        assert held + len(self._free) == len(self._ref_cnt) - 1, f"{held} held + {len(self._free)} free blocks"
        assert all(self._ref_cnt[block] == 0 for block in self._free), "a free block is held"
        for key, holders in self._holders.items():
            assert all(self._content[block] == key for block in holders), f"content {key} is elsewhere"
