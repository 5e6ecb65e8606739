"""The blocks that requests hold and need; wraps the pool and the prefix cache.

Mirrors vLLM's v1/core/kv_cache_manager.py (0.32) in counts: a request with `n` computed tokens holds the blocks of `n`
tokens, of which the full ones whose tokens are known can be found by content.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

from sim.engine.block_pool import BlockPool
from sim.engine.columns import Ints
from sim.engine.config import KVGroup, SchedulerConfig
from sim.engine.keyed_blocks import KeyedBlocks
from sim.engine.passed_blocks import PassedBlocks
from sim.engine.prefix_cache import Extent, Held, Piece, PrefixCache
from sim.engine.request import Request
from sim.engine.unlimited import UNLIMITED


class PrefixHit:
    """Cached copies of a request's leading blocks by KV group; a window group needs only the last of them.

    `num_unheld` of these copies nobody holds, so that they stand in the free list; of `num_nowhere_held` blocks of full
    attention nobody holds any copy.
    """

    __slots__ = ("num_blocks", "num_nowhere_held", "num_unheld", "pieces")

    def __init__(
        self, num_blocks: int, pieces: tuple[Sequence[Piece], ...], num_unheld: int, num_nowhere_held: int
    ) -> None:
        self.num_blocks = num_blocks
        self.pieces = pieces
        self.num_unheld = num_unheld
        self.num_nowhere_held = num_nowhere_held


NO_HIT: Final = PrefixHit(0, (), 0, 0)


def best_hit(request: Request) -> PrefixHit:
    """The best possible hit of a request: all its keyed blocks, each held by a running request."""
    return NO_HIT if request.keyed is None else PrefixHit(request.keyed.count, (), 0, 0)


def num_unheld(pieces: Sequence[Piece]) -> int:
    """How many of these copies no request holds, so that they are in the free list."""
    count = 0
    for piece in pieces:
        if not piece.extent.holders:
            count += piece.end - piece.start
    return count


def num_without_holder(pieces: Sequence[Piece]) -> int:
    """Of how many of these contents no request holds any copy: a lookup finds a younger one when the oldest is evicted."""
    count = 0
    for piece in pieces:
        if not piece.extent.holders:
            count += piece.extent.chain.num_without_holder(piece.start, piece.end)
    return count


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold that many tokens."""
    return -(-num_tokens // block_size)


def most_blocks(group: KVGroup, config: SchedulerConfig, num_slots_ahead: int = 0) -> int:
    """The most blocks that a group holds at once for a request of any length, as vLLM's admission gate counts: it knows of no slots ahead."""
    if group.window is None:
        return UNLIMITED
    in_flight = config.engine.max_num_batched_tokens * config.num_batches_in_flight + num_slots_ahead
    reach = min(group.window - 1 + in_flight, config.max_model_len)
    return blocks_for(reach, config.block_size) + 1


def can_ever_fit(num_tokens: int, config: SchedulerConfig, num_slots_ahead: int = 0) -> bool:
    """Whether a request that is alone finds slots for that many tokens and those ahead of them, within max_model_len."""
    blocks = blocks_for(min(num_tokens + num_slots_ahead, config.max_model_len), config.block_size)
    most = [most_blocks(group, config, num_slots_ahead) for group in config.kv_groups]
    return sum(min(blocks, group) for group in most) <= config.num_usable_blocks


def longest_that_fits(config: SchedulerConfig, num_slots_ahead: int = 0) -> int:
    """The most tokens, up to max_model_len, for which a request that is alone finds slots; -1 where it finds none at all."""
    tokens = range(config.max_model_len + 1)
    return bisect_left(tokens, True, key=lambda count: not can_ever_fit(count, config, num_slots_ahead)) - 1


class KVCacheManager:
    """Admission, growth and release of requests over one pool.

    The keys of blocks cover `hash_lookahead` tokens behind them too. `has_common_window_blocks` is set when a request takes hold of blocks that a window of another has yet to pass.
    """

    def __init__(self, config: SchedulerConfig, num_keys: int, hash_lookahead: int = 0) -> None:
        self._config = config
        self._num_behind_hit = max(1, hash_lookahead)
        self._block_size = config.block_size
        self.windows = [group.window for group in config.kv_groups]
        self._full_groups = [group for group, window in enumerate(self.windows) if window is None]
        self._windows = [(group, window) for group, window in enumerate(self.windows) if window is not None]
        self._num_blocks_needed = [
            UNLIMITED if window is None else blocks_for(window - 1, config.block_size) for window in self.windows
        ]  # last blocks of a hit that the next token attends to, by group
        self._most_blocks = [most_blocks(group, config) for group in config.kv_groups]
        self.num_groups = len(config.kv_groups)
        self._caches = [PrefixCache() for _ in config.kv_groups]
        self._num_keys = num_keys
        self.has_windows = config.has_windows
        self.has_common_window_blocks = False
        self.pool = BlockPool(
            config.num_usable_blocks,
            unhashed_blocks_first=config.engine.rules.unhashed_blocks_first,
            keeps_contents=config.engine.enable_prefix_caching,
            passed=PassedBlocks(config.block_size, self.num_groups),
        )

    @property
    def keys(self) -> Iterator[int]:
        """Of all that can be found."""
        return chain.from_iterable(cache.keys for cache in self._caches)

    # -- admission -------------------------------------------------------------------------------------------------

    def find_prefix(self, request: Request, num_dropped: int = 0) -> PrefixHit:
        """The longest cached prefix of a waiting request but for its last blocks; at least one token is left to compute."""
        keyed = request.keyed
        if keyed is None:
            return NO_HIT
        num_blocks = self._num_found(
            keyed, (request.num_tokens - self._num_behind_hit) // self._block_size, num_dropped
        )
        pieces = []
        num_free = num_nowhere_held = 0
        for group, cache in enumerate(self._caches):
            first = max(0, num_blocks - self._num_blocks_needed[group])
            found = cache.match(keyed.spans, first, num_blocks)
            pieces.append(found)
            num_free_here = num_unheld(found)
            num_free += num_free_here
            if num_free_here and self.windows[group] is None:
                num_nowhere_held += num_without_holder(found)
        return PrefixHit(num_blocks, tuple(pieces), num_free, num_nowhere_held)

    def num_found_after(self, request: Request, num_taken: int) -> int:
        """Leading blocks that a waiting request would find cached if so many blocks were taken for others before."""
        evicted = self.pool.copies_within(num_taken)
        for extent, count in evicted:
            extent.end -= count
        num_blocks = self.find_prefix(request).num_blocks
        for extent, count in evicted:
            extent.end += count
        return num_blocks

    def _num_found(self, keyed: KeyedBlocks, num_blocks: int, num_dropped: int) -> int:
        """How many leading blocks, up to so many, can be skipped: each window finds all that it needs of them, the last ones."""
        for group in self._full_groups:
            num_blocks = self._caches[group].match_end(keyed.spans, num_blocks, UNLIMITED)
        num_blocks = max(0, min(num_blocks, keyed.count) - num_dropped)
        before = -1
        while self.has_windows and num_blocks != before:
            before = num_blocks
            for group, _ in self._windows:
                needed = self._num_blocks_needed[group]
                num_blocks = self._caches[group].match_end(keyed.spans, num_blocks, needed)
        return num_blocks

    @property
    def num_registered(self) -> int:
        """How many blocks have been made findable so far."""
        return sum(cache.num_registered for cache in self._caches)

    def can_admit(self, num_tokens: int, hit: PrefixHit, reserve: int) -> bool:
        """The admission gate: whether that many tokens, all that is known of a request, fit now beside `reserve`."""
        return self._most_new_blocks(num_tokens, hit) + hit.num_unheld + reserve <= self.pool.num_free

    def num_blocks_to_admit(self, num_tokens: int, hit: PrefixHit, reserve: int) -> int:
        """Free blocks below which `can_admit` is false, of this hit and of whatever evictions will leave of it.

        A shorter hit spares no block of full attention, held or free; younger copies that others hold do, and so may those that a window needs.
        """
        return self._most_new_blocks(num_tokens, hit) + hit.num_nowhere_held + reserve

    def _most_new_blocks(self, num_tokens: int, hit: PrefixHit) -> int:
        num_tokens = min(num_tokens, self._config.max_model_len)
        if self.num_groups == 1 and not self.has_windows:
            return max(0, -(-num_tokens // self._block_size) - hit.num_blocks)
        blocks = blocks_for(num_tokens, self._block_size)
        return sum([max(0, min(blocks, most) - hit.num_blocks) for most in self._most_blocks])

    def admit(self, request: Request, hit: PrefixHit, num_tokens: int, reserve: int) -> int | None:
        """Hold the hit and take blocks for `num_tokens`, hit included; the number taken, or None if they do not fit."""
        new = (-(-num_tokens // self._block_size) - hit.num_blocks) * self.num_groups
        if new + hit.num_unheld + reserve > self.pool.num_free:
            return None
        if self.has_windows:
            request.passed_blocks = [0] * self.num_groups
        if request.keyed is not None:
            self._hold(request, request.keyed, hit)
        self.pool.take(new)
        return new

    def _hold(self, request: Request, keyed: KeyedBlocks, hit: PrefixHit) -> None:
        pieces = hit.pieces or ((),) * self.num_groups
        for group, _ in self._windows:
            if any(piece.extent.holders for piece in pieces[group]):
                self.has_common_window_blocks = True
        keyed.held = [Held(hit.num_blocks) for _ in pieces]
        for group, found in enumerate(pieces):
            self.pool.touch(found, keyed.held[group])
        if request.passed_blocks is not None:
            request.passed_blocks = [held.first for held in keyed.held]

    # -- growth ----------------------------------------------------------------------------------------------------

    def new_blocks(self, num_computed: int, num_tokens: int) -> int:
        """Blocks that a request takes to go on from `num_computed` tokens."""
        size = self._block_size
        return (-(-(num_computed + num_tokens) // size) + -num_computed // size) * self.num_groups

    def passes_blocks(self, request: Request, num_processed: int) -> bool:
        """Whether blocks lie wholly before the windows of what is processed that have not been given back."""
        passed_blocks = request.passed_blocks
        assert passed_blocks is not None, "only groups with windows are passed"
        for group, window in self._windows:
            if (num_processed - window + 1) // self._block_size > passed_blocks[group]:
                return True
        return False

    def free_passed_windows(self, request: Request, num_processed: int) -> None:
        """Give back blocks that lie wholly before the windows of what is processed."""
        passed_blocks = request.passed_blocks
        assert passed_blocks is not None, "only groups with windows are passed"
        for group, window in self._windows:
            passed = max(0, num_processed - window + 1) // self._block_size
            if passed > passed_blocks[group]:
                self._pass_blocks(request, group, passed, passed - passed_blocks[group])
                passed_blocks[group] = passed

    def may_pass_keys(self, request: Request) -> bool:
        """Whether windows have yet to pass blocks of a request whose contents can be found or others may ask for."""
        keyed = request.keyed
        if keyed is None:
            return False
        for group, _ in self._windows:
            held = keyed.held[group]
            if held.first < max(request.num_shared_blocks, held.end):
                return True
        return False

    def passes_keys_alone(self, request: Request) -> bool:
        """Whether all that windows have yet to pass of a request's keyed blocks can be found, and nobody else holds it."""
        keyed = request.keyed
        assert keyed is not None, "its blocks have keys"
        windows = [keyed.held[group] for group, _ in self._windows]
        return all(
            held.end >= request.num_shared_blocks and all(len(extent.holders) == 1 for extent in held.extents)
            for held in windows
        )

    def pass_key(self, request: Request, group: int, number: int) -> Extent | None:
        """A window passes a block, which comes after those that it has passed: its copy, None where it has none."""
        keyed = request.keyed
        assert keyed is not None, "its blocks have keys"
        passed = keyed.held[group].cut_off(number + 1)
        return passed[0] if passed else None

    def keep_shared_blocks(self, request: Request, num_tokens: int) -> None:
        """Make blocks findable that others may ask for and that are filled with known tokens."""
        if request.keyed is not None:
            self._keep_blocks(request.keyed, min(num_tokens // self._block_size, request.num_shared_blocks))

    def _keep_blocks(self, keyed: KeyedBlocks, last: int) -> None:
        """Make held blocks before number `last` findable."""
        for group, held in enumerate(keyed.held):
            if last > held.end:
                self._caches[group].register(keyed.spans, held, last)

    def num_registered_blocks(self, request: Request) -> int:
        """Leading blocks of a request whose contents can be found, or were passed by a window."""
        return min([held.end for held in request.keyed.held]) if request.keyed else 0

    # -- release ---------------------------------------------------------------------------------------------------

    def release(self, request: Request, num_computed: int, num_hashed_tokens: int) -> None:
        """Give back all blocks of a request that has computed that many tokens, of which so many are known."""
        held = -(-num_computed // self._block_size)
        hashed = num_hashed_tokens // self._block_size
        if self.num_groups == 1 and request.keyed is None and request.passed_blocks is None:
            self.pool.release(hashed, held - hashed)
            return
        self.keep_shared_blocks(request, num_hashed_tokens)
        for group in range(self.num_groups):
            passed = request.passed_blocks[group] if request.passed_blocks else 0
            self._release_blocks(request, group, held, max(0, hashed - passed), held - max(hashed, passed))
        request.passed_blocks = None

    def _release_blocks(self, request: Request, group: int, end: int, num_hashed: int, num_unhashed: int) -> None:
        """Give back a group's blocks before number `end`, the last first: so many findable ones and so many others."""
        if request.keyed is None:
            self.pool.release(num_hashed, num_unhashed)
            return
        held = request.keyed.held[group]
        self.pool.release(num_hashed - held.num_before(end), num_unhashed)
        self.pool.give_back(held, end)

    def _pass_blocks(self, request: Request, group: int, end: int, count: int) -> None:
        """Give back so many of a group's blocks before number `end`, the last first, which a window has passed."""
        num_keyed = request.keyed.held[group].num_before(end) if request.keyed else 0
        num_others = count - num_keyed
        if num_others > 0:
            passed = self.pool.passed
            passed.pass_together(passed.window(request.serial, group), end - num_others, num_others)
            self.pool.release_passed(num_others)
        if request.keyed:
            self.pool.give_back(request.keyed.held[group], end)

    def key_all_blocks(self, request: Request, num_hashed_tokens: int) -> None:
        """A preempted request can ask for everything that it had: make it findable, where it is held or free."""
        if not self._config.engine.enable_prefix_caching:
            return
        keyed = self._with_keys(request, (request.num_prompt_tokens + request.max_tokens) // self._block_size)
        passed = request.passed_blocks or [0] * self.num_groups
        if self.has_windows:
            self.pool.name_passed_blocks(request.serial, keyed, self._caches)
            for group in range(self.num_groups):
                if keyed.held[group].end < passed[group]:
                    keyed.held[group] = Held(passed[group])
        self._keep_blocks(keyed, num_hashed_tokens // self._block_size)

    def name_blocks(self, request: Request, num_blocks: int) -> None:
        """Tell the leading blocks of a waiting request from all others, also those that nobody else will ask for."""
        self._with_keys(request, num_blocks)
        request.num_shared_blocks = max(request.num_shared_blocks, num_blocks)

    def _with_keys(self, request: Request, num_blocks: int) -> KeyedBlocks:
        """A request's keyed blocks, which get keys of their own where the trace has none for so many."""
        keyed = request.keyed
        if keyed is None:
            keyed = request.keyed = KeyedBlocks([], request.passed_blocks or [0] * self.num_groups)
        missing = num_blocks - keyed.count
        if missing > 0:
            keyed.add(self._num_keys, missing)
            self._num_keys += missing
        return keyed

    def drain_handed_out(self) -> Ints:
        """By number, the copies that were taken or evicted since the last time that this was asked, of the only group."""
        return self._caches[0].drain_handed_out()
