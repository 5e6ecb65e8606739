"""A what-if: cached blocks that nobody holds are evicted by how often they were used, or by how long their prefix is.

vLLM evicts the least recently used (v1/core/block_pool.py), and so do these among blocks of equal rank. Blocks without content go
first, in every version. Here each block is one by itself, and each of them has a content: the rank of those that nobody can ask for counts too.
"""

import bisect
from collections.abc import Callable

from sim.engine.block_pool import BlockPool
from sim.engine.config import SchedulerConfig
from sim.engine.kv_cache_manager import KVCacheManager, PrefixHit
from sim.engine.request import Request
from sim.engine.walking.slots import Slots
from sim.specs.engine import PrefixCacheEviction
from sim.specs.speculation import Speculation

Key = tuple[int, int]
"""What the trace calls a content, behind -1; else the request that alone can ask for it, and the block's number there."""
Rank = tuple[int, int]


class Copy:
    """A block that can be found: block `number` of a prompt. `num_uses` counts who took hold of it since it was filled."""

    def __init__(self, key: Key, number: int) -> None:
        self.key = key
        self.number = number
        self.num_uses = 1
        self.num_holders = 1
        self.released = 0


def _least_used(copy: Copy) -> Rank:
    return (copy.num_uses, copy.released)


def _longest_prefix(copy: Copy) -> Rank:
    return (-copy.number, copy.released)


RANKS: dict[PrefixCacheEviction, Callable[[Copy], Rank]] = {"lfu": _least_used, "size_aware": _longest_prefix}


class RankedPool(BlockPool):
    """So many blocks without content, and copies that nobody holds, in the order of their eviction."""

    def __init__(self, num_blocks: int, rank: Callable[[Copy], Rank]) -> None:
        super().__init__(num_blocks, unhashed_blocks_first=True)
        self.copies: dict[Key, list[Copy]] = {}
        self._rank = rank
        self._unheld: list[Copy] = []
        self._num_released = 0

    def take(self, count: int) -> None:
        self.num_free -= count
        self.num_blank -= count
        while self.num_blank < 0:
            copy = self._unheld.pop(0)
            self.copies[copy.key].remove(copy)
            self.num_evictions += 1
            self.num_blank += 1

    def hold(self, copy: Copy) -> None:
        """One more request uses a copy."""
        if not copy.num_holders:
            del self._unheld[bisect.bisect_left(self._unheld, self._rank(copy), key=self._rank)]
            self.num_free -= 1
        copy.num_holders += 1
        copy.num_uses += 1

    def fill(self, key: Key, number: int) -> Copy:
        """A block that somebody holds has a content now."""
        copy = Copy(key, number)
        self.copies.setdefault(key, []).append(copy)
        return copy

    def give_back_copy(self, copy: Copy) -> None:
        """One request fewer holds it."""
        copy.num_holders -= 1
        if not copy.num_holders:
            self._num_released += 1
            copy.released = self._num_released
            bisect.insort(self._unheld, copy, key=self._rank)
            self.num_free += 1

    def give_back_blank(self, count: int) -> None:
        """Blocks without content come free."""
        self.num_blank += count
        self.num_free += count


class RankedKVCache(KVCacheManager):
    """Admission and release over a pool whose blocks have ranks, for one KV group of full attention."""

    def __init__(self, config: SchedulerConfig, hash_lookahead: int, rank: Callable[[Copy], Rank]) -> None:
        super().__init__(config, 0, hash_lookahead)
        self._num_behind_hit = max(1, hash_lookahead)
        self.ranked = RankedPool(config.num_usable_blocks, rank)
        self.pool = self.ranked
        self._held: dict[Request, list[Copy]] = {}

    def find_prefix(self, request: Request, *, drops: bool = False) -> PrefixHit:
        found = self._found(request, (request.num_tokens - self._num_behind_hit) // self._block_size)
        found = found[: max(0, len(found) - drops)]
        num_unheld = sum([not copy.num_holders for copy in found])
        return PrefixHit(len(found), (), num_unheld, self._num_without_holder(request, len(found)))

    def _found(self, request: Request, most: int) -> list[Copy]:
        """The oldest copies of its leading blocks."""
        found: list[Copy] = []
        for number in range(most):
            copies = self.ranked.copies.get(_key(request, number))
            if not copies:
                break
            found.append(copies[0])
        return found

    def _num_without_holder(self, request: Request, num_blocks: int) -> int:
        copies = (self.ranked.copies[_key(request, number)] for number in range(num_blocks))
        return sum([not any(copy.num_holders for copy in those) for those in copies])

    def admit(self, request: Request, hit: PrefixHit, num_tokens: int, reserve: int) -> int | None:
        new = -(-num_tokens // self._block_size) - hit.num_blocks
        if new + hit.num_unheld + reserve > self.pool.num_free:
            return None
        self._held[request] = self._found(request, hit.num_blocks)
        for copy in self._held[request]:
            self.ranked.hold(copy)
        self.pool.take(new)
        return new

    def keep_shared_blocks(self, request: Request, num_tokens: int) -> None:
        held = self._held[request]
        for number in range(len(held), num_tokens // self._block_size):
            held.append(self.ranked.fill(_key(request, number), number))

    def release(self, request: Request, num_computed: int, num_hashed_tokens: int) -> None:
        if request not in self._held:
            return
        self.keep_shared_blocks(request, num_hashed_tokens)
        held = self._held.pop(request)
        self.ranked.give_back_blank(-(-num_computed // self._block_size) - len(held))
        for copy in reversed(held):
            self.ranked.give_back_copy(copy)

    def key_all_blocks(self, request: Request, num_hashed_tokens: int) -> None:
        """They have keys."""


def _key(request: Request, number: int) -> Key:
    keyed = request.keyed
    return (request.index, number) if keyed is None or number >= keyed.count else (-1, keyed.key(number))


class RankedSlots(Slots):
    """Slots over such a cache."""

    def __init__(
        self, config: SchedulerConfig, speculation: Speculation | None, evicts_by: PrefixCacheEviction
    ) -> None:
        self._evicts_by = evicts_by
        super().__init__(config, speculation, 0)

    def _make_cache(
        self,
        config: SchedulerConfig,
        speculation: Speculation | None,  # noqa: ARG002 - as all slots make theirs
        num_keys: int,  # noqa: ARG002
        hash_lookahead: int,
    ) -> KVCacheManager:
        return RankedKVCache(config, hash_lookahead, RANKS[self._evicts_by])
