"""Which blocks a request holds: hits, growth, sliding windows, release.

Mirrors vLLM's v1/core/kv_cache_manager.py, kv_cache_coordinator.py and single_type_kv_cache_manager.py (0.32 and 0.33).
"""

from collections.abc import Sequence
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
        """What is held of the request, as far as its admission uses it: drafters have the last block computed again.

        Where full attention has more of it than windows, prompts part: the request keeps what windows need there.
        """
        hit = self._longest_prefix(request, num_dropped=int(self._drops_last_hit))
        if self._config.engine.enable_prefix_caching:
            longest = self._longest_match_alone(request) * self._block_size
            request.junction = longest if longest > hit.num_tokens else 0
        return hit

    def _longest_match_alone(self, request: Request) -> int:
        """Blocks that the kind of layers has which vLLM asks first: full attention, or without any that of the first group."""
        longest = self._longest_full_match(request) - self._drops_last_hit
        if any(group.window is None for group in self._groups):
            return longest
        first = [number for number, group in enumerate(self._groups) if group == self._groups[0]]
        for num_blocks in range(longest, 0, -1):
            if all(self._match(request, number, num_blocks) is not None for number in first):
                return num_blocks
        return 0

    def is_retained(self, request: Request, group: KVGroup, index: int) -> bool:
        """Whether so-many-th full block of a group can be found: of windows, those that one needs at certain places of a prompt."""
        interval = self._config.retention_interval
        if group.window is None or interval is None or not group.is_kept_sparsely:
            return True
        needed = blocks_for(group.window - 1, self._block_size) + self._drops_last_hit
        for tokens in self._boundaries(request):
            end = tokens // self._block_size + self._drops_last_hit
            if end - needed <= index < end:
                return True
        segment = interval // self._block_size
        place = index - self._drops_last_hit
        return interval > 0 and (needed >= segment or (place >= 0 and place % segment >= segment - needed))

    def _boundaries(self, request: Request) -> list[int]:
        """Where a later request can go on: behind the same prompt, or a longer one, and where it has parted from others."""
        size, prompt = self._block_size, request.num_prompt_tokens
        junctions = [request.junction] if request.junction else []
        if not self._drops_last_hit:
            return [prompt - 1, *junctions]
        if junctions and self._config.engine.rules.keeps_block_before_junction:
            junctions.append(junctions[0] - size)
        return [*(max(0, (tokens // size - 1) * size) for tokens in (prompt - 1, prompt)), *junctions]

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

    def can_admit(self, request: Request, hit: PrefixHit, *, reserve: int, num_external: int = 0) -> bool:
        """The admission gate: whether everything known of the request fits now, `reserve` blocks left over."""
        tables = request.block_tables or self._begun(request, hit, num_external)
        needed = self._num_missing(request.num_tokens, tables)
        if not request.block_tables:
            needed += sum(map(self.pool.num_free_among, tables))
        return needed + reserve <= self.pool.num_free_blocks

    def num_still_to_take(self, request: Request, num_ahead: int) -> int:
        """What a request that has begun will ask for until its prompt's end and those tokens behind it."""
        tables = request.block_tables or self.no_hit.blocks
        return self._num_missing(request.num_tokens, tables, num_ahead)

    def _num_missing(self, num_tokens: int, tables: Sequence[Sequence[int]], num_ahead: int = 0) -> int:
        """What these tables lack, as far as a group ever holds so much at once."""
        num_tokens = min(num_tokens, self._config.max_model_len) + num_ahead
        most = [most_blocks(group, num_tokens, self._config) for group in self._groups]
        return sum(max(0, count - len(table)) for count, table in zip(most, tables, strict=True))

    def _begun(self, request: Request, hit: PrefixHit, num_external: int) -> list[list[int]]:
        """The tables with which a request begins behind a hit and what comes from elsewhere: null where windows have passed."""
        computed = request.num_computed_tokens + hit.num_tokens + num_external
        passed = [self._num_passed(group, computed) for group in self._groups]
        return [[NULL_BLOCK] * count + list(found[count:]) for count, found in zip(passed, hit.blocks, strict=True)]

    def _num_passed(self, group: KVGroup, num_tokens: int) -> int:
        """Blocks that lie wholly before the window of the token behind those."""
        return 0 if group.window is None else max(0, num_tokens - group.window + 1) // self._block_size

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        *,
        hit: PrefixHit | None = None,
        num_external: int = 0,
        reserve: int = 0,
    ) -> int | None:
        """Give the request room for its next tokens, behind those from elsewhere; the number of new blocks, or None if they do not fit.

        Blocks that a sliding window has passed are given back first, whether or not the rest then fits. Where there are none but
        tokens from elsewhere, these have no contents yet, and no drafts ahead of them.
        """
        self.free_passed_windows(request)
        hit = hit or self.no_hit
        computed = request.num_computed_tokens + hit.num_tokens + num_external
        ahead = self._lookahead if num_new_tokens else 0
        total = blocks_for(min(computed + num_new_tokens + ahead, self._config.max_model_len), self._block_size)
        tables = request.block_tables or self._begun(request, hit, num_external)
        new = [max(0, total - len(table)) for table in tables]
        evictable = 0 if request.block_tables else sum(map(self.pool.num_free_among, tables))
        if sum(new) + evictable + reserve > self.pool.num_free_blocks:
            return None
        if not request.block_tables:
            request.block_tables = tables
            request.num_hashed_blocks = [len(table) for table in tables]
            for table in tables:
                self.pool.touch(table)
        for table, count in zip(tables, new, strict=True):
            table.extend(self.pool.take(count))
        if num_new_tokens:
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
                if table[index] != NULL_BLOCK and self.is_retained(request, self._groups[group], index):
                    self.pool.keep_content(table[index], (group, keys[index]), index)
            request.num_hashed_blocks[group] = max(full, request.num_hashed_blocks[group])

    def free(self, request: Request) -> None:
        """Release all that the request holds."""
        for table in request.block_tables:
            self.pool.release(table)
        request.block_tables = []
        request.num_hashed_blocks = []

    def free_passed_windows(self, request: Request) -> None:
        """Give back what lies wholly before the windows of the next token that is processed."""
        processed = request.num_computed_tokens - request.num_in_flight_tokens
        for group, table in zip(self._groups, request.block_tables, strict=False):
            passed = min(self._num_passed(group, processed), len(table))
            self.pool.release([block for block in table[:passed] if block != NULL_BLOCK])
            table[:passed] = [NULL_BLOCK] * passed
