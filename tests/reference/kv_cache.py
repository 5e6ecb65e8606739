"""Which blocks a request holds: hits, growth, sliding windows, release.

Mirrors vLLM's v1/core/kv_cache_manager.py and kv_cache_coordinator.py (0.32). Deliberate difference: sliding-window
groups keep every full block findable, where vLLM 0.33 keeps only boundary blocks by default; more can be hit here.
"""

from typing import NamedTuple

from sim.engine.config import KVGroup, SchedulerConfig
from tests.reference.blocks import NULL_BLOCK, BlockPool
from tests.reference.modes import Speculation
from tests.reference.request import Request


class PrefixHit(NamedTuple):
    """The longest cached prefix: its length and, by group, the blocks that hold it."""

    num_tokens: int
    blocks: tuple[tuple[int, ...], ...]


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold that many tokens."""
    return -(-num_tokens // block_size)


def most_blocks(group: KVGroup, num_tokens: int, config: SchedulerConfig) -> int:
    """The most blocks that a group holds at once for a request of that length, as vLLM's admission gate counts."""
    blocks = blocks_for(num_tokens, config.block_size)
    if group.window is None:
        return blocks
    in_flight = config.engine.max_num_batched_tokens * config.num_batches_in_flight
    reach = min(group.window - 1 + in_flight, config.max_model_len)
    return min(blocks, blocks_for(reach, config.block_size) + 1)


class KVCacheManager:
    """Block tables by group over one pool. Nothing is allocated unless all that was asked for fits."""

    def __init__(self, config: SchedulerConfig, speculation: Speculation | None = None) -> None:
        self._config = config
        self._lookahead = speculation.lookahead if speculation else 0
        self._drops_last_hit = bool(speculation and speculation.drops_last_hit)
        self.num_never_kept = speculation.unfinished_tokens if speculation else 0
        self._hash_lookahead = speculation.hash_lookahead if speculation else 0
        self._block_size = config.block_size
        self._groups = config.kv_groups
        self.pool = BlockPool(
            config.num_gpu_blocks,
            unhashed_blocks_first=config.engine.rules.unhashed_blocks_first,
            evicts_by=config.engine.prefix_cache_eviction,
        )
        self.no_hit = PrefixHit(0, tuple(() for _ in self._groups))

    def find_prefix(self, request: Request) -> PrefixHit:
        """What is held of the request, as far as its admission uses it: drafters have the last block computed again."""
        return self._longest_prefix(request, num_dropped=int(self._drops_last_hit))

    def held_prefix(self, request: Request) -> PrefixHit:
        """The same as others see it."""
        return self._longest_prefix(request, num_dropped=0)

    def _longest_prefix(self, request: Request, *, num_dropped: int) -> PrefixHit:
        """The longest prefix of the request that every group still holds; at least one token is left to compute."""
        if not self._config.engine.enable_prefix_caching:
            return self.no_hit
        for num_blocks in range(self._longest_full_match(request) - num_dropped, 0, -1):
            blocks = tuple(self._match(request, group, num_blocks) for group in range(len(self._groups)))
            if all(matched is not None for matched in blocks):
                return PrefixHit(num_blocks * self._block_size, tuple(matched or () for matched in blocks))
        return self.no_hit

    def _longest_full_match(self, request: Request) -> int:
        """Blocks up to the first miss in the full-attention groups, which bounds every group's hit."""
        limit = (request.num_tokens - max(1, self._hash_lookahead)) // self._block_size
        keys = request.block_keys.upto(limit)
        full = [number for number, group in enumerate(self._groups) if group.window is None]
        for index in range(limit):
            if any(self.pool.find((group, keys[index])) is None for group in full):
                return index
        return limit

    def _match(self, request: Request, group: int, num_blocks: int) -> tuple[int, ...] | None:
        """The blocks with which this group can resume after `num_blocks`, null where its window has passed."""
        window = self._groups[group].window
        needed = num_blocks if window is None else min(num_blocks, -(-(window - 1) // self._block_size))
        keys = request.block_keys.upto(num_blocks)
        found = [self.pool.find((group, keys[index])) for index in range(num_blocks - needed, num_blocks)]
        if any(block is None for block in found):
            return None
        return (NULL_BLOCK,) * (num_blocks - needed) + tuple(block for block in found if block is not None)

    def can_admit(self, request: Request, hit: PrefixHit, *, reserve: int) -> bool:
        """The admission gate: whether everything known of the request fits now, `reserve` blocks left over."""
        num_tokens = min(request.num_tokens, self._config.max_model_len)
        tables = request.block_tables or [[] for _ in self._groups]
        needed = sum(
            max(0, most_blocks(group, num_tokens, self._config) - len(table) - len(blocks))
            + self.pool.num_free_among(blocks)
            for group, table, blocks in zip(self._groups, tables, hit.blocks, strict=True)
        )
        return needed + reserve <= self.pool.num_free_blocks

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        *,
        hit: PrefixHit | None = None,
        reserve: int = 0,
        is_loaded: bool = False,
    ) -> int | None:
        """Give the request room for its next tokens; the number of new blocks, or None if they do not fit.

        Blocks that a sliding window has passed are given back first, whether or not the rest then fits. Tokens that
        are loaded have no contents yet, and no drafts ahead of them.
        """
        self._free_passed_windows(request)
        hits = (hit or self.no_hit).blocks
        computed = request.num_computed_tokens + (hit.num_tokens if hit else 0)
        ahead = 0 if is_loaded else self._lookahead
        total = blocks_for(min(computed + num_new_tokens + ahead, self._config.max_model_len), self._block_size)
        tables = request.block_tables or [[] for _ in self._groups]
        new = [max(0, total - len(table) - len(found)) for table, found in zip(tables, hits, strict=True)]
        evictable = sum(self.pool.num_free_among(found) for found in hits)
        if sum(new) + evictable + reserve > self.pool.num_free_blocks:
            return None
        request.block_tables = tables
        for table, found in zip(tables, hits, strict=True):
            self.pool.touch(found)
            table.extend(found)
        for table, count in zip(tables, new, strict=True):
            table.extend(self.pool.take(count))
        if hit:
            request.num_hashed_blocks = [len(found) for found in hits]
        if not is_loaded:
            self.keep_full_blocks(request, computed + num_new_tokens)
        return sum(new)

    def keep_full_blocks(self, request: Request, num_tokens: int) -> None:
        """Make blocks that are filled with known tokens findable."""
        if not self._config.engine.enable_prefix_caching:
            return
        finished = max(0, min(num_tokens, request.num_tokens) - self.num_never_kept)
        full = min(finished, max(0, request.num_tokens - self._hash_lookahead)) // self._block_size
        keys = request.block_keys.upto(full)
        for group, table in enumerate(request.block_tables):
            for index in range(request.num_hashed_blocks[group], full):
                if table[index] != NULL_BLOCK:
                    self.pool.keep_content(table[index], (group, keys[index]), index)
            request.num_hashed_blocks[group] = max(full, request.num_hashed_blocks[group])

    def free(self, request: Request) -> None:
        """Release all that the request holds."""
        for table in request.block_tables:
            self.pool.release(table)
        request.block_tables = []
        request.num_hashed_blocks = []

    def _free_passed_windows(self, request: Request) -> None:
        processed = request.num_computed_tokens - request.num_in_flight_tokens
        for group, table in zip(self._groups, request.block_tables, strict=False):
            if group.window is None:
                continue
            passed = max(0, processed - group.window + 1) // self._block_size
            self.pool.release([block for block in table[:passed] if block != NULL_BLOCK])
            table[:passed] = [NULL_BLOCK] * passed
