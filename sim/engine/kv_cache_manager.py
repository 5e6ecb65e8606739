"""The blocks that requests hold and need; wraps the pool and the prefix cache.

Mirrors vLLM's v1/core/kv_cache_manager.py (0.32) in counts: a request with `n` computed tokens holds the blocks of `n`
tokens, of which the full ones whose tokens are known can be found by content.
"""

import sys
from bisect import bisect_left
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.engine.block_pool import BlockPool
from sim.engine.config import KVGroup, SchedulerConfig
from sim.engine.passed_blocks import PassedByOne
from sim.engine.prefix_cache import NO_COPIES, NO_COPY, Copies, KeyedBlocks, PrefixCache
from sim.engine.request import Request


class PrefixHit(NamedTuple):
    """Cached copies of a request's leading blocks by KV group; a window group needs only the last of them.

    `num_unheld` of these copies nobody holds, so that they stand in the free list; `num_unheld_full` of them are of groups
    with full attention.
    """

    num_blocks: int
    copies: tuple[Copies, ...]
    num_unheld: int
    num_unheld_full: int


NO_HIT = PrefixHit(0, (), 0, 0)


def best_hit(request: Request) -> PrefixHit:
    """The best possible hit of a request: all its keyed blocks, each held by a running request."""
    return NO_HIT if request.keyed is None else PrefixHit(len(request.keyed.keys), (), 0, 0)


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


def can_ever_fit(num_tokens: int, config: SchedulerConfig) -> bool:
    """Whether the KV of that many tokens could be held by a request that is alone."""
    return sum(most_blocks(group, num_tokens, config) for group in config.kv_groups) <= config.num_usable_blocks


def longest_that_fits(config: SchedulerConfig) -> int:
    """The most tokens, up to max_model_len, whose KV fits if a request is alone."""
    tokens = range(config.max_model_len + 1)
    return bisect_left(tokens, True, key=lambda num_tokens: not can_ever_fit(num_tokens, config)) - 1


class KVCacheManager:
    """Admission, growth and release of requests over one pool.

    `has_common_window_blocks` is set when a request takes hold of blocks that a window of another has yet to pass.
    """

    def __init__(self, config: SchedulerConfig, num_keys: int) -> None:
        self._config = config
        self._block_size = config.block_size
        self.windows = [group.window for group in config.kv_groups]
        self._full_groups = [group for group, window in enumerate(self.windows) if window is None]
        self._window_groups = [group for group, window in enumerate(self.windows) if window is not None]
        self._num_blocks_needed = [
            sys.maxsize if window is None else blocks_for(window - 1, config.block_size) for window in self.windows
        ]  # last blocks of a hit that the next token attends to, by group
        self.num_groups = len(config.kv_groups)
        self._cache = PrefixCache(config.num_usable_blocks, num_keys * self.num_groups)
        self.has_windows = config.has_windows
        self.has_common_window_blocks = False
        self.pool = BlockPool(
            config.num_usable_blocks,
            self._cache,
            unhashed_blocks_first=config.engine.rules.unhashed_blocks_first,
            keeps_contents=config.engine.enable_prefix_caching,
        )

    # -- admission -------------------------------------------------------------------------------------------------

    def find_prefix(self, request: Request, num_dropped: int = 0) -> PrefixHit:
        """The longest cached prefix of a waiting request but for its last blocks; at least one token is left to compute."""
        if request.keyed is None:
            return NO_HIT
        self.pool.settle()
        keyed, num_blocks = request.keyed, (request.num_tokens - 1) // self._block_size
        matched = [NO_COPIES] * self.num_groups
        for group in self._full_groups:
            matched[group] = self._cache.match(keyed.of_group(group)[:num_blocks])
            num_blocks = len(matched[group])
        num_blocks = max(0, min(num_blocks, len(keyed.keys)) - num_dropped)
        if self.has_windows:
            num_blocks = self._longest_to_go_on_from(keyed, num_blocks)
        for group in self._window_groups:
            first = max(0, num_blocks - self._num_blocks_needed[group])
            matched[group] = self._cache.match(keyed.of_group(group)[first:num_blocks])
        return self._hit(num_blocks, [copies[:num_blocks] for copies in matched])

    def _longest_to_go_on_from(self, keyed: KeyedBlocks, num_blocks: int) -> int:
        """How many leading blocks, up to so many, can be skipped: each window finds all that it needs of them, the last ones."""
        before = -1
        while num_blocks != before:
            before = num_blocks
            for group in self._window_groups:
                keys = keyed.of_group(group)[:num_blocks]
                num_blocks = self._cache.last_match_end(keys, self._num_blocks_needed[group])
        return num_blocks

    def _hit(self, num_blocks: int, copies: list[Copies]) -> PrefixHit:
        num_unheld = [self._cache.num_unheld(found) for found in copies]
        return PrefixHit(
            num_blocks, tuple(copies), sum(num_unheld), sum(num_unheld[group] for group in self._full_groups)
        )

    @property
    def num_registered(self) -> int:
        """How many blocks have been made findable so far."""
        return self._cache.num_registered

    def can_admit(self, num_tokens: int, hit: PrefixHit, reserve: int) -> bool:
        """The admission gate: whether that many tokens, all that is known of a request, fit now beside `reserve`."""
        return self._most_new_blocks(num_tokens, hit) + hit.num_unheld + reserve <= self.pool.num_free

    def num_blocks_to_admit(self, num_tokens: int, hit: PrefixHit, reserve: int) -> int:
        """Free blocks below which `can_admit` is false, of this hit and of whatever evictions will leave of it.

        A shorter hit spares no block of full attention, held or free. Those that a window needs may be held by others.
        """
        return self._most_new_blocks(num_tokens, hit) + hit.num_unheld_full + reserve

    def _most_new_blocks(self, num_tokens: int, hit: PrefixHit) -> int:
        num_tokens = min(num_tokens, self._config.max_model_len)
        if self.num_groups == 1 and not self.has_windows:
            return max(0, -(-num_tokens // self._block_size) - hit.num_blocks)
        groups = self._config.kv_groups
        return sum(max(0, most_blocks(group, num_tokens, self._config) - hit.num_blocks) for group in groups)

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
        copies = hit.copies or (NO_COPIES,) * self.num_groups
        for group in self._window_groups:
            if self._cache.num_unheld(copies[group]) < len(copies[group]):
                self.has_common_window_blocks = True
        for found in copies:
            self.pool.touch(found)
        keyed.held = list(copies)
        keyed.first = [hit.num_blocks - len(found) for found in copies]
        if request.passed_blocks is not None:
            request.passed_blocks = list(keyed.first)

    # -- growth ----------------------------------------------------------------------------------------------------

    def new_blocks(self, num_computed: int, num_tokens: int) -> int:
        """Blocks that a request takes to go on from `num_computed` tokens."""
        size = self._block_size
        return (-(-(num_computed + num_tokens) // size) + -num_computed // size) * self.num_groups

    def passes_blocks(self, request: Request, num_processed: int) -> bool:
        """Whether blocks lie wholly before the windows of what is processed that have not been given back."""
        passed_blocks = request.passed_blocks
        assert passed_blocks is not None, "only groups with windows are passed"
        for group, window in enumerate(self.windows):
            if window is not None and (num_processed - window + 1) // self._block_size > passed_blocks[group]:
                return True
        return False

    def free_passed_windows(self, request: Request, num_processed: int) -> None:
        """Give back blocks that lie wholly before the windows of what is processed."""
        passed_blocks = request.passed_blocks
        assert passed_blocks is not None, "only groups with windows are passed"
        for group, window in enumerate(self.windows):
            if window is None:
                continue
            passed = max(0, num_processed - window + 1) // self._block_size
            if passed > passed_blocks[group]:
                self._pass_blocks(request, group, passed, passed - passed_blocks[group])
                passed_blocks[group] = passed

    def may_pass_keys(self, request: Request) -> bool:
        """Whether windows have yet to pass blocks of a request whose contents can be found or others may ask for."""
        keyed = request.keyed
        if keyed is None:
            return False
        for group, window in enumerate(self.windows):
            if window is not None and keyed.first[group] < max(request.num_shared_blocks, keyed.end(group)):
                return True
        return False

    def passes_keys_alone(self, request: Request) -> bool:
        """Whether all that windows have yet to pass of a request's keyed blocks can be found, and nobody else holds it."""
        keyed = request.keyed
        assert keyed is not None, "its blocks have keys"
        for group in self._window_groups:
            if keyed.end(group) < request.num_shared_blocks or not self._cache.are_held_once(keyed.held[group]):
                return False
        return True

    def pass_key(self, request: Request, group: int, number: int) -> int:
        """A window passes a block, which comes after those that it has passed: its copy, NO_COPY where it has none."""
        released = self._take_keyed(request, group, number + 1)
        return int(released[0]) if len(released) else NO_COPY

    def keep_shared_blocks(self, request: Request, num_tokens: int) -> None:
        """Make blocks findable that others may ask for and that are filled with known tokens."""
        if request.keyed is not None:
            self._keep_blocks(request.keyed, min(num_tokens // self._block_size, request.num_shared_blocks))

    def _keep_blocks(self, keyed: KeyedBlocks, last: int) -> None:
        """Make held blocks before number `last` findable."""
        for group in range(self.num_groups):
            first = keyed.end(group)
            if last > first:
                self.pool.settle()
                copies = self._cache.register(keyed.of_group(group)[first:last])
                held = keyed.held[group]
                keyed.held[group] = np.concatenate((held, copies)) if len(held) else copies

    def num_registered_blocks(self, request: Request) -> int:
        """Leading blocks of a request whose contents can be found, or were passed by a window."""
        return min(request.keyed.end(group) for group in range(self.num_groups)) if request.keyed else 0

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
        released = self._take_keyed(request, group, end)
        self.pool.release(num_hashed - len(released), num_unhashed)
        if len(released):
            self.pool.release_keyed(released)

    def _pass_blocks(self, request: Request, group: int, end: int, count: int) -> None:
        """Give back so many of a group's blocks before number `end`, the last first, which a window has passed."""
        released = self._take_keyed(request, group, end)
        if count > len(released):
            self.pool.release_passed(count - len(released), PassedByOne(request.serial, group, end))
        if len(released):
            self.pool.release_keyed(released)

    def _take_keyed(self, request: Request, group: int, end: int) -> Copies:
        """The copies that a request holds of blocks before number `end`, and no longer will."""
        keyed = request.keyed
        if keyed is None:
            return NO_COPIES
        copies = keyed.held[group]
        released = copies[: max(0, end - keyed.first[group])]
        keyed.first[group] = max(keyed.first[group], end)
        keyed.held[group] = copies[len(released) :]
        return released

    def key_all_blocks(self, request: Request, num_hashed_tokens: int) -> None:
        """A preempted request can ask for everything that it had: make it findable, where it is held or free."""
        if not self._config.engine.enable_prefix_caching:
            return
        keyed = self._with_keys(request, (request.num_prompt_tokens + request.max_tokens) // self._block_size)
        passed = request.passed_blocks or [0] * self.num_groups
        if self.has_windows:
            keys = [keyed.of_group(group) for group in range(self.num_groups)]
            self.pool.name_passed_blocks(request.serial, keys)
            for group in range(self.num_groups):
                if keyed.end(group) < passed[group]:
                    keyed.first[group], keyed.held[group] = passed[group], NO_COPIES
        self._keep_blocks(keyed, num_hashed_tokens // self._block_size)

    def name_blocks(self, request: Request, num_blocks: int) -> None:
        """Tell the leading blocks of a waiting request from all others, also those that nobody else will ask for."""
        self._with_keys(request, num_blocks)
        request.num_shared_blocks = max(request.num_shared_blocks, num_blocks)

    def _with_keys(self, request: Request, num_blocks: int) -> KeyedBlocks:
        """A request's keyed blocks, which get keys of their own where the trace has none for so many."""
        keyed = request.keyed
        if keyed is None:
            passed = request.passed_blocks or [0] * self.num_groups
            keyed = request.keyed = KeyedBlocks(NO_COPIES, [NO_COPIES] * self.num_groups, list(passed))
        missing = num_blocks - len(keyed.keys)
        if missing > 0:
            keyed.add_keys(self._cache.new_keys(missing, self.num_groups))
        return keyed

    def drain_handed_out(self) -> NDArray[np.bool_]:
        """By number, the copies that were taken or evicted since the last time that this was asked."""
        self.pool.settle()
        return self._cache.drain_handed_out()
