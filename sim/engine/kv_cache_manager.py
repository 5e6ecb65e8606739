"""The blocks that requests hold and need; wraps the pool and the prefix cache.

Mirrors vLLM's v1/core/kv_cache_manager.py (0.32) in counts: a request with `n` computed tokens holds the blocks of `n`
tokens, of which the full ones whose tokens are known can be found by content.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

import numpy as np

from sim.engine.block_pool import BlockPool
from sim.engine.columns import Ints
from sim.engine.config import KVGroup, SchedulerConfig
from sim.engine.keyed_blocks import KeyedBlocks
from sim.engine.passed_blocks import PassedBlocks
from sim.engine.prefix_cache import Extent, Held, Piece, PrefixCache, SparseHeld
from sim.engine.prefix_lookup import PrefixLookup
from sim.engine.request import Request
from sim.engine.retention import Ranges, Retention
from sim.engine.unlimited import UNLIMITED


class PrefixHit:
    """Cached copies of a request's leading blocks by KV group; a window group needs only the last of them.

    `num_unheld` of these copies nobody holds, so that they stand in the free list; of `num_nowhere_held` blocks of full
    attention nobody holds any copy. `num_alone` blocks are there of the kind of layers that is looked up first. A request needs none of a group's blocks
    before number `begins`, all of them as many as the hit has where that is not said. Behind it come `num_external` tokens from elsewhere.
    `state` is the copy of the last state that was found.
    """

    __slots__ = (
        "begins",
        "num_alone",
        "num_blocks",
        "num_external",
        "num_nowhere_held",
        "num_unheld",
        "pieces",
        "state",
    )

    def __init__(
        self,
        num_blocks: int,
        pieces: tuple[Sequence[Piece], ...],
        num_unheld: int,
        num_nowhere_held: int,
        num_alone: int = 0,
        begins: Sequence[int] = (),
    ) -> None:
        self.num_external = 0
        self.state: Piece | None = None
        self.num_blocks = num_blocks
        self.pieces = pieces
        self.num_unheld = num_unheld
        self.num_nowhere_held = num_nowhere_held
        self.num_alone = num_alone
        self.begins = begins


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


def _last_blocks(pieces: Sequence[Piece], count: int) -> Sequence[Piece]:
    """Of these copies, which follow on each other, the last so many."""
    found: list[Piece] = []
    for piece in reversed(pieces):
        if count <= 0:
            break
        found.insert(0, Piece(piece.extent, max(piece.start, piece.end - count), piece.end))
        count -= piece.end - piece.start
    return found


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold that many tokens."""
    return -(-num_tokens // block_size)


def most_blocks(group: KVGroup, config: SchedulerConfig, num_slots_ahead: int = 0) -> int:
    """The most blocks that a group holds at once for a request of any length, as vLLM's admission gate counts: it knows of no slots ahead."""
    if group.window is None:
        return UNLIMITED
    if group.keeps_states:
        return 1 + config.num_batches_in_flight + int(group.writes_checkpoints) + num_slots_ahead
    in_flight = config.engine.max_num_batched_tokens * config.num_batches_in_flight + num_slots_ahead
    reach = min(group.window - 1 + in_flight, config.max_model_len)
    return blocks_for(reach, config.block_size) + 1


def can_ever_fit(num_tokens: int, config: SchedulerConfig, num_slots_ahead: int = 0) -> bool:
    """Whether a request that is alone finds slots for that many tokens and those ahead of them, within max_model_len."""
    blocks = blocks_for(min(num_tokens + num_slots_ahead, config.max_model_len), config.block_size)
    most = [most_blocks(group, config, num_slots_ahead) for group in config.kv_groups]
    return sum(min(blocks, group) for group in most) + config.num_state_blocks <= config.num_usable_blocks


def longest_that_fits(config: SchedulerConfig, num_slots_ahead: int = 0) -> int:
    """The most tokens, up to max_model_len, for which a request that is alone finds slots; -1 where it finds none at all."""
    tokens = range(config.max_model_len + 1)
    return bisect_left(tokens, True, key=lambda count: not can_ever_fit(count, config, num_slots_ahead)) - 1


class KVCacheManager:
    """Admission, growth and release of requests over one pool.

    The keys of blocks cover `hash_lookahead` tokens behind them too; `drops`: a drafter has the last block of a hit computed again. Of groups that it `keeps_sparsely` no block without
    a name can be found, so that prompts have names there. `has_common_window_blocks` is set when a request takes hold of blocks that a window of another has yet to pass.
    """

    def __init__(self, config: SchedulerConfig, num_keys: int, hash_lookahead: int = 0, *, drops: bool = False) -> None:
        self._config = config
        self._retention: Retention | None = None
        if config.caches_with_gaps and config.retention_interval is not None:
            assert config.engine.rules.unhashed_blocks_first, "what does not stay comes to the front of the free list"
            self._retention = Retention(config, config.retention_interval, drops=drops)
        self.keeps_sparsely = [
            group.keeps_states or (self._retention is not None and group.is_kept_sparsely and group.window is not None)
            for group in config.kv_groups
        ]
        self._num_state_blocks = config.num_state_blocks
        self._block_size = config.block_size
        self.windows = [group.window for group in config.kv_groups]
        self._token_groups = [group for group, one in enumerate(config.kv_groups) if not one.keeps_states]
        self._windows = [
            (group, window)
            for group, window in enumerate(self.windows)
            if window is not None and group in self._token_groups
        ]
        self._most_blocks = [0 if group.keeps_states else most_blocks(group, config) for group in config.kv_groups]
        self.num_groups = len(config.kv_groups)
        self.num_token_groups = len(self._token_groups)
        self._caches = [PrefixCache() for _ in config.kv_groups]
        self._lookup = PrefixLookup(config, self._caches, hash_lookahead)
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

    def find_prefix(self, request: Request, *, drops: bool = False) -> PrefixHit:
        """The longest cached prefix of a waiting request, where it `drops` a block without that one; at least one token is left to compute."""
        keyed = request.keyed
        if keyed is None:
            return NO_HIT
        num_blocks, num_alone = self._lookup.longest(keyed, request.num_tokens, drops=drops)
        pieces = self._lookup.pieces(keyed, [num_blocks] * self.num_groups)
        num_free = num_nowhere_held = 0
        for group, found in enumerate(pieces):
            num_free_here = num_unheld(found)
            num_free += num_free_here
            if num_free_here and self.windows[group] is None:
                num_nowhere_held += num_without_holder(found)
        return PrefixHit(num_blocks, pieces, num_free, num_nowhere_held, num_alone)

    def num_found_after(self, request: Request, num_taken: int) -> int:
        """Leading blocks that a waiting request would find cached if so many blocks were taken for others before."""
        evicted = self.pool.copies_within(num_taken)
        for extent, count in evicted:
            extent.end -= count
        num_blocks = self.find_prefix(request).num_blocks
        for extent, count in evicted:
            extent.end += count
        return num_blocks

    def behind_load(self, hit: PrefixHit, num_external: int) -> PrefixHit:
        """What a request needs of a hit behind which so many tokens come from elsewhere: windows may have passed some of it, or all."""
        if not self.has_windows:
            return hit
        num_tokens = hit.num_blocks * self._block_size + num_external
        begins: list[int] = []
        pieces: list[Sequence[Piece]] = []
        for group, found in enumerate(hit.pieces or ((),) * self.num_groups):
            window = self.windows[group]
            passed = 0 if window is None else self._num_passed(window, num_tokens)
            end = hit.begins[group] if hit.begins else hit.num_blocks
            begins.append(max(passed, end))
            pieces.append(_last_blocks(found, end - passed))
        num_free = sum([num_unheld(found) for found in pieces])
        return PrefixHit(hit.num_blocks, tuple(pieces), num_free, hit.num_nowhere_held, hit.num_alone, begins)

    def num_still_to_take(self, num_tokens: int, num_blocks: int) -> int:
        """What a request with so many blocks of each group will ask for until that many tokens, as far as it holds so many at once."""
        blocks = blocks_for(num_tokens, self._block_size)
        return sum([max(0, min(blocks, most) - num_blocks) for most in self._most_blocks])

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
        lasting = 0 if hit.num_blocks else self._num_state_blocks
        if self.num_groups == 1 and not self.has_windows:
            return max(0, -(-num_tokens // self._block_size) - hit.num_blocks) + lasting
        blocks = blocks_for(num_tokens, self._block_size)
        begins = hit.begins or [hit.num_blocks] * self.num_groups
        new = [max(0, min(blocks, most) - begin) for most, begin in zip(self._most_blocks, begins, strict=True)]
        return sum(new) + lasting

    def admit(self, request: Request, hit: PrefixHit, num_tokens: int, reserve: int) -> int | None:
        """Hold the hit and take blocks for `num_tokens`, hit included; the number taken, or None if they do not fit."""
        num_blocks = -(-num_tokens // self._block_size)
        if hit.begins:
            new = sum([max(0, num_blocks - hit.begins[group]) for group in self._token_groups])
        else:
            new = (num_blocks - hit.num_blocks) * self.num_token_groups
        new += self._num_state_blocks
        if new + hit.num_unheld + reserve > self.pool.num_free:
            return None
        if self.has_windows:
            request.passed_blocks = list(hit.begins) or [0] * self.num_groups
        if self._config.caches_with_gaps:
            self._with_keys(request, self._last_named_token(request) // self._block_size)
        if request.keyed is not None:
            self._hold(request, request.keyed, hit)
        self.pool.take(new)
        return new

    def _last_named_token(self, request: Request) -> int:
        """Of those in blocks that can be found by name alone."""
        assert self._retention is not None, "not all blocks of windows stay"
        return self._retention.last_token(request)

    def _hold(self, request: Request, keyed: KeyedBlocks, hit: PrefixHit) -> None:
        pieces = hit.pieces or ((),) * self.num_groups
        for group, _ in self._windows:
            if any(piece.extent.holders for piece in pieces[group]):
                self.has_common_window_blocks = True
        begins = hit.begins or [hit.num_blocks] * self.num_groups
        keyed.held = [self._no_copies(group, begin) for group, begin in enumerate(begins)]
        for group, found in enumerate(pieces):
            self.pool.touch(found, keyed.held[group])
        if request.passed_blocks is not None:
            request.passed_blocks = [held.first for held in keyed.held]

    def _no_copies(self, group: int, first: int) -> Held:
        """Of a group's blocks from that number on."""
        return SparseHeld(first) if self.keeps_sparsely[group] else Held(first)

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

    def has_passed_all(self, request: Request, num_processed: int) -> bool:
        """Whether just the blocks that lie wholly before the windows of what is processed have been given back; a load may have left out more."""
        passed_blocks = request.passed_blocks
        assert passed_blocks is not None, "only groups with windows are passed"
        return all(self._num_passed(window, num_processed) == passed_blocks[group] for group, window in self._windows)

    def _num_passed(self, window: int, num_tokens: int) -> int:
        """Blocks that lie wholly before the window of the token behind those."""
        return max(0, num_tokens - window + 1) // self._block_size

    def free_passed_windows(self, request: Request, num_processed: int) -> None:
        """Give back blocks that lie wholly before the windows of what is processed."""
        passed_blocks = request.passed_blocks
        assert passed_blocks is not None, "only groups with windows are passed"
        for group, window in self._windows:
            passed = self._num_passed(window, num_processed)
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
        keyed = request.keyed
        if keyed is not None:
            last = num_tokens // self._block_size
            self._keep_blocks(request, keyed, min(last, request.num_shared_blocks), min(last, keyed.count))

    def _keep_blocks(self, request: Request, keyed: KeyedBlocks, last: int, last_named: int) -> None:
        """Make held blocks before number `last` findable; where not all can be, those before number `last_named` that can."""
        for group, held in enumerate(keyed.held):
            if not self.keeps_sparsely[group]:
                if last > held.end:
                    self._caches[group].register(keyed.spans, held, last)
            elif last_named > held.end:
                for start, end in self.ranges_kept(request, group, held.end, last_named):
                    held.end = start
                    self._caches[group].register(keyed.spans, held, end)
                held.end = last_named

    def num_registered_blocks(self, request: Request) -> int:
        """Leading blocks of a request whose contents can be found, or were passed by a window."""
        return min([held.end for held in request.keyed.held]) if request.keyed else 0

    # -- release ---------------------------------------------------------------------------------------------------

    def release(self, request: Request, num_computed: int, num_hashed_tokens: int) -> None:
        """Give back all blocks of a request that has computed that many tokens, of which so many are known."""
        held = -(-num_computed // self._block_size)
        hashed = num_hashed_tokens // self._block_size
        if held and self._num_state_blocks:
            self.pool.release(0, self._num_state_blocks)
        if self.num_groups == 1 and request.keyed is None and request.passed_blocks is None:
            self.pool.release(hashed, held - hashed)
            return
        self.keep_shared_blocks(request, num_hashed_tokens)
        for group in range(self.num_groups):
            passed = request.passed_blocks[group] if request.passed_blocks else 0
            if self.keeps_sparsely[group] and request.keyed is not None:
                num_named = request.keyed.held[group].num_before(held)
                num_held = self._num_held(request, group, held - passed)
                self._release_blocks(request, group, held, num_named, num_held - num_named)
                continue
            self._release_blocks(request, group, held, max(0, hashed - passed), held - max(hashed, passed))
        request.passed_blocks = None

    def _num_held(self, request: Request, group: int, num_not_passed: int) -> int:  # noqa: ARG002 - for layers that keep states
        """How many blocks of a group a request holds that keeps them sparsely."""
        return num_not_passed

    def _release_blocks(self, request: Request, group: int, end: int, num_hashed: int, num_unhashed: int) -> None:
        """Give back a group's blocks before number `end`, the last first: so many findable ones and so many others."""
        if request.keyed is None:
            self.pool.release(num_hashed, num_unhashed)
            return
        held = request.keyed.held[group]
        self.pool.release(num_hashed - held.num_before(end), num_unhashed)
        self.pool.give_back(held.cut_off(end))

    def _pass_blocks(self, request: Request, group: int, end: int, count: int) -> None:
        """Give back so many of a group's blocks before number `end`, the last first, which a window has passed."""
        num_keyed = request.keyed.held[group].num_before(end) if request.keyed else 0
        num_others = count - num_keyed
        if self.keeps_sparsely[group]:
            self.pool.release(0, num_others)
        elif num_others > 0:
            passed = self.pool.passed
            passed.pass_together(passed.window(request.serial, group), end - num_others, num_others)
            self.pool.release_passed(num_others)
        if request.keyed:
            self.pool.give_back(request.keyed.held[group].cut_off(end))

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
                    keyed.held[group] = self._no_copies(group, passed[group])
        last = num_hashed_tokens // self._block_size
        self._keep_blocks(request, keyed, last, last)

    def name_blocks(self, request: Request, num_blocks: int) -> None:
        """Tell the leading blocks of a waiting request from all others, also those that nobody else will ask for."""
        self._with_keys(request, num_blocks)
        request.num_shared_blocks = max(request.num_shared_blocks, num_blocks)

    def _with_keys(self, request: Request, num_blocks: int) -> KeyedBlocks:
        """A request's keyed blocks, which get keys of their own where the trace has none for so many."""
        keyed = request.keyed
        if keyed is None:
            firsts = request.passed_blocks or [0] * self.num_groups
            keyed = request.keyed = KeyedBlocks([], [])
            keyed.held = [self._no_copies(group, first) for group, first in enumerate(firsts)]
        missing = num_blocks - keyed.count
        if missing > 0:
            keyed.add(self._num_keys, missing)
            self._num_keys += missing
        return keyed

    # -- copies by number, for who stores them elsewhere ------------------------------------------------------------

    def drain_handed_out(self) -> Ints:
        """By number, the copies that were taken or evicted since the last time that this was asked."""
        if self.num_groups == 1:
            return self._caches[0].drain_handed_out()
        return np.concatenate(
            [cache.drain_handed_out() * self.num_groups + group for group, cache in enumerate(self._caches)]
        )

    def copies(self, request: Request) -> Ints:
        """The numbers of all that a request holds."""
        assert request.keyed is not None, "its blocks have keys"
        held = request.keyed.held
        if self.num_groups == 1:
            return held[0].serials()
        return np.concatenate([one.serials() * self.num_groups + group for group, one in enumerate(held)])

    def copy_of(self, request: Request, group: int, block: int) -> int:
        """The number of a block's copy, -1 where the request holds none."""
        assert request.keyed is not None, "its blocks have keys"
        serial = request.keyed.held[group].serial(block)
        return serial if serial < 0 else serial * self.num_groups + group

    def ranges_kept(self, request: Request, group: int, first: int, last: int) -> Ranges:
        """Of a group's blocks from number `first` to before `last`, those that can be found once they are full."""
        window = self.windows[group]
        if self._retention is None or window is None or not self.keeps_sparsely[group]:
            return [(first, last)]
        return self._retention.ranges(group, request, first, last)
