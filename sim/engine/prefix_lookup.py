"""How long a prefix of a prompt the caches of all KV groups have between them.

Mirrors `find_longest_cache_hit` of vLLM's coordinators (v1/core/kv_cache_coordinator.py, 0.33). A drafter that reads ahead has the last block of a hit
computed again, in the groups where its layers are: these look for one block more, and leave it.
"""

from collections.abc import Sequence

from sim.engine.config import SchedulerConfig
from sim.engine.keyed_blocks import KeyedBlocks
from sim.engine.prefix_cache import Piece, PrefixCache
from sim.engine.unlimited import UNLIMITED


class Kind:
    """KV groups of layers that are just alike, which are asked together: `num_needed` last blocks of a hit are what the next token attends to."""

    def __init__(self, config: SchedulerConfig, number: int) -> None:
        group = config.kv_groups[number]
        window = group.window
        self.numbers = [
            other
            for other, one in enumerate(config.kv_groups)
            if (one.window, one.keeps_states) == (window, group.keeps_states)
        ]
        self.has_prefixes = window is None
        self.num_needed = UNLIMITED if window is None else -(-(window - 1) // config.block_size)
        self.drops = config.drops_last_hit[number]
        self.leaves = int(self.drops and not group.keeps_states)  # no drafter has states


class PrefixLookup:
    """Over one cache for each KV group. The keys of blocks cover `hash_lookahead` tokens behind them too."""

    def __init__(self, config: SchedulerConfig, caches: Sequence[PrefixCache], hash_lookahead: int) -> None:
        self._block_size = config.block_size
        self._caches = caches
        self._hash_lookahead = hash_lookahead
        self._is_one_group = len(caches) == 1
        kinds = {kind.numbers[0]: kind for kind in (Kind(config, number) for number in range(len(caches)))}
        self.kinds = sorted(kinds.values(), key=lambda kind: not kind.has_prefixes)
        self._first, self._others = self.kinds[0], self.kinds[1:]
        self._again = self._asked_again()
        needed = {number: kind.num_needed for kind in self.kinds for number in kind.numbers}
        self._num_needed = [needed[number] for number in range(len(caches))]

    def _asked_again(self) -> list[Kind]:
        """Full attention has every prefix of what it had, and vLLM asks one other kind beside it but once."""
        if not self._first.has_prefixes:
            return self.kinds
        return self._others if len(self._others) > 1 else []

    def longest(self, keyed: KeyedBlocks, num_tokens: int, *, drops: bool) -> tuple[int, int]:
        """Of a request that knows so many tokens, of which at least one is left to compute: the blocks with which all can go on, and those with which
        the kind could that is asked first.

        Each shortens what the one before has found, until none does. A kind leaves a block once, unless one that leaves none has shortened the prefix since.
        """
        most = (num_tokens - 1) // self._block_size
        if drops and self._is_one_group:
            most = max(0, most - 1)  # without looking for one more
        num_blocks = num_alone = self.reach(self._first, keyed, num_tokens, most, drops=drops)
        left = {self._first} if drops and self._first.drops else set()
        turn, before = self._others, -1
        while num_blocks != before and turn:
            before = num_blocks
            for kind in turn:
                drops_here = drops and kind.drops and kind not in left
                found = self.reach(kind, keyed, num_tokens, num_blocks, drops=drops_here)
                if drops_here:
                    left.add(kind)
                elif found < num_blocks:
                    left.clear()
                num_blocks = found
            turn = self._again
        return num_blocks, num_alone

    def reach(self, kind: Kind, keyed: KeyedBlocks, num_tokens: int, most: int, *, drops: bool) -> int:
        """The blocks, at most so many, with which a kind can go on."""
        leaves = kind.leaves if drops else 0
        end = min(most + leaves, (num_tokens - self._hash_lookahead) // self._block_size, keyed.count)
        before = -1
        while end != before:
            before = end
            for number in kind.numbers:
                end = self._caches[number].match_end(keyed.spans, end, kind.num_needed + leaves)
            if kind.has_prefixes or len(kind.numbers) == 1:
                break  # what was found does not depend on what the others lack
        return max(0, end - leaves)

    def pieces(self, keyed: KeyedBlocks, ends: Sequence[int]) -> tuple[list[Piece], ...]:
        """By group, the copies with which it goes on behind so many blocks."""
        return tuple(
            [
                cache.match(keyed.spans, max(0, end - needed), end)
                for cache, end, needed in zip(self._caches, ends, self._num_needed, strict=True)
            ]
        )
