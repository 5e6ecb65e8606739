"""Which blocks a request holds: hits, growth, sliding windows, release.

Mirrors vLLM's v1/core/kv_cache_manager.py, kv_cache_coordinator.py and single_type_kv_cache_manager.py (0.32 and 0.33).
"""

from collections.abc import Sequence
from dataclasses import replace
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
        self.doubts_drafts = [self._drops_last_hit and group.has_drafter for group in config.kv_groups]
        self.num_never_kept = speculation.unfinished_tokens if speculation else 0
        self.num_left_to_decode = max(self.num_never_kept, config.num_tokens_left_to_decode)
        self._hash_lookahead = speculation.hash_lookahead if speculation else 0
        self._num_drafts = speculation.k if speculation else 0
        self._block_size = config.block_size
        self._groups = config.kv_groups
        self._drops = config.drops_last_hit
        alike: dict[KVGroup, list[int]] = {}
        for number, group in enumerate(config.kv_groups):
            alike.setdefault(replace(group, has_drafter=False), []).append(number)
        self._kinds = sorted(alike.values(), key=lambda kind: self._groups[kind[0]].window is not None)
        self._has_two_kinds = len(alike) == 2 and self._groups[self._kinds[0][0]].window is None
        self.pool = BlockPool(
            config.num_gpu_blocks,
            unhashed_blocks_first=config.engine.rules.unhashed_blocks_first,
            evicts_by=config.engine.prefix_cache_eviction,
        )
        self._states_kept: dict[int, list[tuple[Request, int, int]]] = {}
        self.start_pass()
        self.no_hit = PrefixHit(0, tuple(() for _ in self._groups))

    def find_prefix(self, request: Request) -> PrefixHit:
        """What is held of the request, as far as its admission uses it: drafters have the last block computed again.

        Where full attention has more of it than windows, prompts part: the request keeps what windows need there.
        """
        if not self._config.engine.enable_prefix_caching:
            return self.no_hit
        num_blocks, longest = self._longest_prefix(request, drops=self._drops_last_hit)
        request.junction = longest * self._block_size if longest > num_blocks else 0
        return self._hit(request, [num_blocks] * len(self._groups), num_blocks)

    def find_prefix_before_load(self, request: Request) -> PrefixHit | None:
        """What full attention has of the request, where the rest with its states comes from elsewhere; None where states reach further, or there are none."""
        if not self._config.keeps_states or not self._config.engine.enable_prefix_caching:
            return None
        most = (request.num_tokens - 1) // self._block_size
        reached = {
            number: self._reach(request, kind, most, drops=self._drops[number] and self._drops_last_hit)
            for kind in self._kinds
            for number in kind
        }
        by_group = [reached[number] for number in range(len(self._groups))]
        num_blocks = by_group[self._kinds[0][0]]
        return None if max(by_group) > num_blocks else self._hit(request, by_group, num_blocks)

    def held_prefix(self, request: Request) -> PrefixHit:
        """The same as others see it."""
        if not self._config.engine.enable_prefix_caching:
            return self.no_hit
        num_blocks, _ = self._longest_prefix(request, drops=False)
        return self._hit(request, [num_blocks] * len(self._groups), num_blocks)

    def _hit(self, request: Request, by_group: Sequence[int], num_blocks: int) -> PrefixHit:
        return PrefixHit(
            num_blocks * self._block_size,
            tuple(self._match(request, *reached) or () for reached in enumerate(by_group)),
        )

    def _longest_prefix(self, request: Request, *, drops: bool) -> tuple[int, int]:
        """The blocks with which all groups can resume, and those with which the first kind of layers could; at least one token is left to compute.

        Mirrors `find_longest_cache_hit` of vLLM's coordinators: each kind in turn shortens what the one before had, until none does. One that drops a block
        looks for one more, and does so once, unless another kind has shortened the prefix since.
        """
        end = (request.num_tokens - 1) // self._block_size
        if drops and len(self._groups) == 1:
            end = max(0, end - 1)  # vLLM does not look for one more
        longest, before = -1, -1
        dropped: set[int] = set()
        while end != before:
            before = end
            for kind in self._kinds:
                number = kind[0]
                drops_here = drops and self._drops[number] and number not in dropped
                if self._groups[number].window is None and longest >= 0:
                    continue  # has every prefix of what it had
                reached = self._reach(request, kind, end, drops=drops_here)
                if drops_here:
                    dropped.add(number)
                elif reached < end:
                    dropped.clear()
                end = reached
                longest = max(longest, end)
            if self._has_two_kinds:
                break
        return end, longest

    def _reach(self, request: Request, kind: Sequence[int], end: int, *, drops: bool) -> int:
        """Up to which block, at most `end`, all groups of a kind have what the next token needs, and before a block that is dropped that one."""
        group = self._groups[kind[0]]
        drops = drops and not group.keeps_states  # no drafter has states
        num_hashed = max(0, request.num_tokens - self._hash_lookahead) // self._block_size
        count = min(end + drops, num_hashed)
        keys = request.block_keys.upto(count)[:count]
        is_there = [all(self.pool.find((number, key)) is not None for number in kind) for key in keys]
        if group.window is None:
            found = is_there.index(False) if False in is_there else len(is_there)
            return max(0, found - drops)
        needed = blocks_for(group.window - 1, self._block_size) + drops
        for last in range(len(is_there), 0, -1):
            if all(is_there[max(0, last - needed) : last]):
                return last - drops
        return 0

    def is_retained(self, request: Request, group: KVGroup, index: int) -> bool:
        """Whether so-many-th full block of a group can be found."""
        drops = self._drops_last_hit and self._drops[self._groups.index(group)]
        return self.is_reachable(group, index, self._boundaries(request, drops=drops), drops=drops)

    def is_reachable(self, group: KVGroup, index: int, boundaries: Sequence[int], *, drops: bool) -> bool:
        """Of windows, those blocks that one needs at certain places of a prompt, and of states the last."""
        interval = self._config.retention_interval
        if group.window is None or interval is None or not group.is_kept_sparsely:
            return True
        if group.keeps_states:
            return self._is_segment(index + 1) or index + 1 in [end // self._block_size for end in boundaries]
        needed = blocks_for(group.window - 1, self._block_size) + drops
        for tokens in boundaries:
            end = tokens // self._block_size + drops
            if end - needed <= index < end:
                return True
        segment, place = interval // self._block_size, index - drops
        return interval > 0 and (needed >= segment or (place >= 0 and place % segment >= segment - needed))

    def _boundaries(self, request: Request, *, drops: bool) -> list[int]:
        """Where a later request can go on: behind the same prompt, or a longer one, and where it has parted from others."""
        size, prompt = self._block_size, request.num_prompt_tokens
        junctions = [request.junction] if request.junction else []
        if not self._drops_last_hit:
            return [prompt - 1, *junctions]
        if junctions and drops and self._config.engine.rules.keeps_block_before_junction:
            junctions.append(junctions[0] - size)
        return [*(max(0, (tokens // size - 1) * size) for tokens in (prompt - 1, prompt)), *junctions]

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
        if self._is_of_this_pass(hit):
            return False
        tables = request.block_tables or self._begun(request, hit, num_external)
        needed = self._num_missing(request.num_tokens, tables)
        computed = request.num_computed_tokens + hit.num_tokens + num_external
        needed += sum(self._states_missing(request, tables, computed, request.num_tokens))
        if not request.block_tables:
            needed += self._num_evictable(hit, tables) + self._config.num_state_blocks
        return needed + reserve <= self.pool.num_free_blocks

    def num_still_to_take(self, request: Request, num_ahead: int) -> int:
        """What a request that has begun will ask for until its prompt's end and those tokens behind it."""
        tables = request.block_tables or self.no_hit.blocks
        computed = max(request.num_computed_tokens, request.num_loaded_tokens)
        states = self._states_missing(request, tables, computed, request.num_tokens)
        return self._num_missing(request.num_tokens, tables, num_ahead) + sum(states)

    def _num_missing(self, num_tokens: int, tables: Sequence[Sequence[int]], num_ahead: int = 0) -> int:
        """What these tables lack, as far as a group ever holds so much at once."""
        num_tokens = min(num_tokens, self._config.max_model_len) + num_ahead
        most = [0 if group.keeps_states else most_blocks(group, num_tokens, self._config) for group in self._groups]
        return sum(max(0, count - len(table)) for count, table in zip(most, tables, strict=True))

    def _num_evictable(self, hit: PrefixHit, tables: Sequence[Sequence[int]]) -> int:
        """Free blocks among those that a request begins with; vLLM counts those of states also where a load reaches past them."""
        found = [
            blocks if group.keeps_states else table
            for group, table, blocks in zip(self._groups, tables, hit.blocks, strict=True)
        ]
        return sum(map(self.pool.num_free_among, found))

    # -- states ----------------------------------------------------------------------------------------------------

    def start_pass(self) -> None:
        """States that are made findable from now on are there for other requests with the next pass only: this one has yet to compute them."""
        self._states_of_this_pass: set[tuple[int, int]] = set()

    def _is_of_this_pass(self, hit: PrefixHit) -> bool:
        held = zip(self._groups, hit.blocks, strict=True)
        contents = {self.pool.content(table[-1]) for group, table in held if group.keeps_states and table}
        return bool(contents & self._states_of_this_pass)

    def _states_missing(self, request: Request, tables: Sequence[Sequence[int]], start: int, end: int) -> list[int]:
        """By group, the blocks for states that a chunk from `start` to `end` takes, as vLLM foretells them: of those it fills the last, and the one before where
        it can be written; one for each draft from a request's beginning on.
        """
        missing = []
        for group, table in zip(self._groups, tables, strict=True):
            most = 1 + self._writes_before_end(request, group, start, end)
            most += 0 if request.holds_states else self._num_drafts
            wanted = blocks_for(end, self._block_size) + self._num_drafts - len(table)
            missing.append(min(wanted, most) if group.keeps_states else 0)
        return missing

    def _grow_states(self, request: Request, number: int, table: list[int], start: int, end: int) -> int:
        """Make a table one for states up to a chunk's end, its last blocks those for drafts; how many blocks were taken."""
        writes_before_end = self._writes_before_end(request, self._groups[number], start, end)
        total, length = blocks_for(end, self._block_size) + self._num_drafts, len(table)
        if total <= length and not writes_before_end:
            return 0
        request.states_before[number] = length - 1 - (self._num_drafts if request.holds_states else 0)
        first_held = total - self._num_drafts - 1 - writes_before_end
        table += [NULL_BLOCK] * (first_held - length)
        if request.holds_states:
            for index in range(length - self._num_drafts, min(length, first_held)):
                table.append(table[index])
                table[index] = NULL_BLOCK
        num_new = max(0, total - len(table))
        table += self.pool.take(num_new)
        return num_new

    def _writes_before_end(self, request: Request, group: KVGroup, start: int, end: int) -> bool:
        """Whether the pass writes a state before a chunk's end too; where few places are kept, in the prompt's last chunk alone."""
        if self._config.retention_interval == 0 and end < prefill_end(request):
            return False
        return self.can_write_before_end(group, start, end)

    def can_write_before_end(self, group: KVGroup, start: int, end: int) -> bool:
        """Whether a pass over a chunk can write the last state before its end that others can go on from: is_mamba_prefill_checkpoint_valid."""
        place, size = self.last_state(end), self._block_size
        return group.writes_checkpoints and start % size == 0 and start + size <= place < end

    # --------------------------------------------------------------------------------------------------------------

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
        end = computed + num_new_tokens
        total = blocks_for(min(end + ahead, self._config.max_model_len), self._block_size)
        tables = request.block_tables or self._begun(request, hit, num_external)
        new = [
            0 if group.keeps_states else max(0, total - len(table))
            for group, table in zip(self._groups, tables, strict=True)
        ]
        states = self._states_missing(request, tables, computed, end)
        lasting = 0 if request.block_tables else self._config.num_state_blocks
        evictable = 0 if request.block_tables else self._num_evictable(hit, tables)
        needed = sum(new) + sum(states) + lasting + evictable + reserve
        if self._is_of_this_pass(hit) or needed > self.pool.num_free_blocks:
            return None
        if not request.block_tables:
            request.block_tables = tables
            request.num_hashed_blocks = [len(table) for table in tables]
            for table in tables:
                self.pool.touch(table)
        for number, (group, table) in enumerate(zip(self._groups, tables, strict=True)):
            if group.keeps_states:
                new[number] = self._grow_states(request, number, table, computed, end)
            else:
                table.extend(self.pool.take(new[number]))
        request.holds_states = True
        writes = [
            self._writes_before_end(request, group, computed, end) for group in self._groups if group.keeps_states
        ]
        request.written_states = (
            (blocks_for(end, self._block_size) - 2, self.last_state(end) // self._block_size) if any(writes) else None
        )
        request.state_blocks += self.pool.take(lasting)
        if num_new_tokens:
            self.keep_full_blocks(request, end)
        return sum(new) + lasting

    def keep_full_blocks(self, request: Request, num_tokens: int) -> None:
        """Make blocks that are filled with known tokens findable."""
        if not self._config.engine.enable_prefix_caching:
            return
        for group, table in enumerate(request.block_tables):
            drops = self._drops_last_hit and self._drops[group]
            never = self.num_never_kept if len(self._groups) == 1 or drops else 0
            finished = max(0, min(num_tokens, request.num_tokens) - never)
            full = min(finished, max(0, request.num_tokens - self._hash_lookahead)) // self._block_size
            keys = request.block_keys.upto(full)
            first = request.num_hashed_blocks[group]
            for index in range(first, full):
                if table[index] != NULL_BLOCK and self.is_retained(request, self._groups[group], index):
                    self.pool.keep_content(table[index], (group, keys[index]), index)
            request.num_hashed_blocks[group] = max(full, first)
            if self._groups[group].keeps_states:
                self._keep_last_state(request, group, full)
                kept = [index for index in range(first, full) if table[index] != NULL_BLOCK]
                contents = {index: self.pool.content(table[index]) for index in kept}
                self._states_of_this_pass |= {content for content in contents.values() if content is not None}
                self._states_kept.setdefault(group, []).extend(
                    (request, table[index], self._place(request, index))
                    for index, content in contents.items()
                    if content is not None
                )

    def _place(self, request: Request, index: int) -> int:
        """The blocks after which the state stands that one of a request's holds."""
        written, place = request.written_states or (-1, -1)
        return place if index == written else index + 1

    def forget_states_kept(self, request: Request) -> None:
        """It is about to give its blocks back, once no batch writes to them."""
        for group, kept in self._states_kept.items():
            self._states_kept[group] = [entry for entry in kept if entry[0] is not request]

    def drain_states_kept(self) -> dict[Request, list[tuple[int, int, int]]]:
        """Those that have been made findable since this was asked last: the group, the block, and after how many blocks it stands."""
        drained: dict[Request, list[tuple[int, int, int]]] = {}
        for group, kept in sorted(self._states_kept.items()):
            for request, block, place in kept:
                drained.setdefault(request, []).append((group, block, place))
        self._states_kept = {}
        return drained

    def _keep_last_state(self, request: Request, group: int, full: int) -> None:
        """The state that a pass wrote before its chunk's end, and that behind which others can go on, can be found as that of its place."""
        last = self.last_state(request.num_prompt_tokens) // self._block_size
        if request.written_states:
            index, place = request.written_states
            block = request.block_tables[group][index]
            if place in (last, request.junction // self._block_size) or self._is_segment(place):
                self._call(block, (group, request.block_keys.upto(place)[place - 1]), place - 1)
            else:
                self.pool.forget(block)
        elif self._config.engine.rules.stops_before_last_token and full == last > 0:
            block = request.block_tables[group][last - 1]
            if block != NULL_BLOCK:
                self._call(block, (group, request.block_keys.upto(last)[last - 1]), last - 1)

    def _call(self, block: int, key: tuple[int, int], number: int) -> None:
        """The block can be found by this content and no other; vLLM 0.32 takes it for one of this pass as long as it is held."""
        is_new = self.pool.content(block) != key
        if is_new:
            self.pool.keep_content(block, key, number)
        if is_new or self._config.engine.rules.marks_last_state_again:
            self._states_of_this_pass.add(key)

    def _is_segment(self, num_blocks: int) -> bool:
        """Whether states stay cached after so many blocks of any prompt."""
        interval = self._config.retention_interval
        return interval is None or (interval > 0 and num_blocks % (interval // self._block_size) == 0)

    def last_state(self, num_tokens: int) -> int:
        """Up to where the states of so many tokens can be found."""
        size = self._block_size
        if self._drops_last_hit:
            return max(0, num_tokens // size - 1) * size
        num_left = max(1, self._hash_lookahead) if self._config.engine.rules.stops_before_last_token else 0
        return max(0, num_tokens - num_left) // size * size

    def free(self, request: Request) -> None:
        """Release all that the request holds."""
        self.forget_states_kept(request)
        for table in request.block_tables:
            self.pool.release(table)
        self.pool.release(request.state_blocks)
        request.state_blocks = []
        request.states_before = {}
        request.holds_states = False
        request.written_states = None
        request.block_tables = []
        request.num_hashed_blocks = []

    def free_passed_windows(self, request: Request) -> None:
        """Give back what lies wholly before the windows of the next token that is processed."""
        processed = request.num_computed_tokens - request.num_in_flight_tokens
        for number, (group, table) in enumerate(zip(self._groups, request.block_tables, strict=False)):
            passed = min(self._num_passed(group, processed), len(table))
            first = self._first_to_free(group, table, passed)
            self.pool.release([block for block in table[first:passed] if block != NULL_BLOCK])
            table[first:passed] = [NULL_BLOCK] * (passed - first)
            before = request.states_before.get(number, -1)
            if group.keeps_states and 0 <= before < blocks_for(processed, self._block_size) - 1:
                self.pool.release([table[before]])
                table[before] = NULL_BLOCK

    def _first_to_free(self, group: KVGroup, table: list[int], passed: int) -> int:
        """Of the blocks that were passed, none before a gap, where that is a version's rule."""
        if not group.keeps_states or self._config.engine.rules.frees_states_behind_gaps:
            return 0
        return next((index + 1 for index in reversed(range(passed)) if table[index] == NULL_BLOCK), 0)


def prefill_end(request: Request) -> int:
    """Up to where chunks are cut: of a preempted request, all but the last token."""
    return max(request.num_prompt_tokens, request.num_tokens - 1)
