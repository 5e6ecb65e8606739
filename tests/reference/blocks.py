"""The pool of KV blocks: who is free, in which order, and which contents can still be found.

Mirrors vLLM's v1/core/block_pool.py (0.32). Deliberate differences: none within one pool; block 0, vLLM's null block,
is never handed out and stands in block tables where a sliding window has passed.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

NULL_BLOCK = 0
ContentKey = tuple[int, int]
"""`(KV group, chained block key)`."""


class BlockPool:
    """Blocks 1..N-1 in a free list whose front is taken (and evicted) first.

    Every block is either free or held (`ref_cnt` > 0). A free block may keep its content, findable until it is taken.
    """

    def __init__(self, num_gpu_blocks: int, *, unhashed_blocks_first: bool = True) -> None:
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_gpu_blocks))
        self._ref_cnt = [0] * num_gpu_blocks
        self._content: list[ContentKey | None] = [None] * num_gpu_blocks
        self._holders: dict[ContentKey, OrderedDict[int, None]] = {}
        self._unhashed_blocks_first = unhashed_blocks_first
        self._handed_out: set[int] = set()
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

    def num_free_among(self, blocks: Iterable[int]) -> int:
        """How many of these blocks nobody holds: touching them takes them from the free list."""
        return sum(1 for block in blocks if block != NULL_BLOCK and self._ref_cnt[block] == 0)

    def take(self, num_blocks: int) -> list[int]:
        """Hand out blocks from the front, evicting their content; the caller has checked that there are enough."""
        assert num_blocks <= len(self._free), f"{num_blocks} blocks wanted, {len(self._free)} free"
        taken = [self._free.popitem(last=False)[0] for _ in range(num_blocks)]
        self._handed_out.update(taken)
        for block in taken:
            self._evict(block)
            self._ref_cnt[block] = 1
        return taken

    def touch(self, blocks: Iterable[int]) -> None:
        """Hold blocks found by content."""
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            if self._ref_cnt[block] == 0:
                del self._free[block]
            self._ref_cnt[block] += 1
            self._handed_out.add(block)

    def drain_handed_out(self) -> set[int]:
        """Blocks that have been taken or touched since the last time."""
        drained, self._handed_out = self._handed_out, set()
        return drained

    def keep_content(self, block: int, key: ContentKey) -> None:
        """Make a full block findable; a duplicate of a content is kept beside the older ones."""
        self._content[block] = key
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

    def _evict(self, block: int) -> None:
        key = self._content[block]
        if key is None:
            return
        holders = self._holders[key]
        del holders[block]
        if not holders:
            del self._holders[key]
        self._content[block] = None
        self.num_evictions += 1

    def check_integrity(self) -> None:
        """Free and held blocks make up the pool, and every findable content is in the block that claims it."""
        held = sum(1 for count in self._ref_cnt[1:] if count)
        assert held + len(self._free) == len(self._ref_cnt) - 1, f"{held} held + {len(self._free)} free blocks"
        assert all(self._ref_cnt[block] == 0 for block in self._free), "a free block is held"
        for key, holders in self._holders.items():
            assert all(self._content[block] == key for block in holders), f"content {key} is elsewhere"
