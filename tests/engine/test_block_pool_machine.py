"""The counting block pool and its prefix cache against a list of blocks, under any sequence of operations."""

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sim.engine.block_pool import BlockPool
from sim.engine.prefix_cache import PrefixCache
from tests.properties import examples

NUM_BLOCKS, NUM_CHAINS, CHAIN = 12, 3, 6


@dataclass(eq=False)
class Block:
    """A block of the model: its content, if it has one, and how many hold it. Contents nobody can ask for are -1."""

    content: int | None = None
    holders: int = 0


@dataclass(eq=False)
class Holder:
    """Who holds blocks: those with a key, which are the first of its chain, and so many others after them."""

    chain: int
    keyed: list[Block]
    copies: list[int]
    private: list[Block] = field(default_factory=list)


class PoolMachine(RuleBasedStateMachine):
    """Requests come with a chain of contents, hit what is there, register more, and go."""

    unhashed_blocks_first = True

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache(NUM_BLOCKS, NUM_CHAINS * CHAIN)
        self.pool = BlockPool(NUM_BLOCKS, self.cache, unhashed_blocks_first=self.unhashed_blocks_first)
        self.free = [Block() for _ in range(NUM_BLOCKS)]
        self.by_age: list[Block] = []
        self.holders: list[Holder] = []
        self.num_evictions = 0

    def take(self, count: int) -> list[Block]:
        taken, self.free = self.free[:count], self.free[count:]
        for block in taken:
            self.num_evictions += block.content is not None
            if block in self.by_age:
                self.by_age.remove(block)
            block.content, block.holders = None, 1
        return taken

    def find(self, content: int) -> Block | None:
        return next((block for block in self.by_age if block.content == content), None)

    @rule(chain=st.integers(0, NUM_CHAINS - 1), count=st.integers(0, 4))
    def come(self, chain: int, count: int) -> None:
        """Hold what is cached of the chain, and take blocks for more of it."""
        keys = np.arange(chain * CHAIN, (chain + 1) * CHAIN)
        self.pool.settle()
        copies = self.cache.match(keys)
        hit = []
        for key in keys.tolist():
            block = self.find(key)
            if block is None:
                break
            hit.append(block)
        assert len(copies) == len(hit)
        unheld = [block for block in hit if not block.holders]
        assert self.cache.num_unheld(copies) == len(unheld)
        if count + len(unheld) > len(self.free):
            return
        self.pool.touch(copies)
        for block in hit:
            block.holders += 1
            if block in self.free:
                self.free.remove(block)
        self.pool.take(count)
        self.holders.append(Holder(chain, hit, copies.tolist(), self.take(count)))

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def fill(self, data: st.DataObject) -> None:
        """Register the next blocks of a chain: what was private can be found."""
        holder = data.draw(st.sampled_from(self.holders))
        count = min(len(holder.private), CHAIN - len(holder.keyed))
        first = holder.chain * CHAIN + len(holder.keyed)
        self.pool.settle()
        holder.copies += self.cache.register(np.arange(first, first + count)).tolist()
        for content in range(first, first + count):
            block = holder.private.pop(0)
            block.content = content
            self.by_age.append(block)
            holder.keyed.append(block)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        """Release everything, the tail first; of the private blocks all but the last are full."""
        holder = data.draw(st.sampled_from(self.holders))
        self.holders.remove(holder)
        num_unhashed = min(1, len(holder.private))
        self.pool.release(len(holder.private) - num_unhashed, num_unhashed)
        self.pool.release_keyed(np.array(holder.copies, dtype=np.int64))
        for block in holder.private[: len(holder.private) - num_unhashed]:
            block.content = -1
        line = []
        for block in reversed(holder.keyed + holder.private):
            block.holders -= 1
            if not block.holders:
                line.append(block)
        blank = [block for block in line if block.content is None]
        if self.unhashed_blocks_first:
            self.free = blank + self.free + [block for block in line if block.content is not None]
        else:
            self.free += line

    @invariant()
    def they_agree(self) -> None:
        """Free blocks, contents lost, and which contents can be found are the same in both."""
        assert self.pool.num_free == len(self.free)
        assert self.pool.num_evictions == self.num_evictions
        found = self.cache.find(np.arange(NUM_CHAINS * CHAIN)) >= 0
        assert found.tolist() == [self.find(key) is not None for key in range(NUM_CHAINS * CHAIN)]


class OlderPoolMachine(PoolMachine):
    """The same with everything freed at the end of the line, as before vLLM 0.25.1."""

    unhashed_blocks_first = False


TestPool = PoolMachine.TestCase
TestOlderPool = OlderPoolMachine.TestCase
TestPool.settings = TestOlderPool.settings = examples(100, steps=25)
