"""The pool, which counts blocks and keeps copies in extents, against a list of blocks, under any sequence of operations."""

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sim.engine.block_pool import BlockPool
from sim.engine.kv_cache_manager import num_unheld
from sim.engine.prefix_cache import Held, PrefixCache
from sim.engine.spans import Span
from tests.properties import engine_examples as examples

NUM_BLOCKS, LONGEST = 12, 6
PROMPTS = (
    [Span(0, 0, 6)],
    [Span(0, 0, 3), Span(3, 6, 3)],
    [Span(0, 0, 3), Span(3, 6, 1), Span(4, 9, 2)],
)
"""The second goes another way after three blocks, the third after a block more."""


def content(prompt: int, block: int) -> int:
    span = next(span for span in PROMPTS[prompt] if block < span.end)
    return span.key + block - span.block


@dataclass(eq=False)
class Block:
    """A block of the model: its content, if it has one, and how many hold it. Contents nobody can ask for are -1."""

    content: int | None = None
    holders: int = 0


@dataclass(eq=False)
class Holder:
    """Who holds blocks: those with a key from number `first` of its prompt on, and so many others after them."""

    prompt: int
    first: int
    keyed: list[Block]
    held: Held
    private: list[Block] = field(default_factory=list)


class PoolMachine(RuleBasedStateMachine):
    """Requests come with a prompt, hit what is there, register more, leave some behind, and go."""

    unhashed_blocks_first = True
    tells_copies_apart = False

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache()
        if self.tells_copies_apart:
            self.cache.drain_handed_out()
        self.pool = BlockPool(NUM_BLOCKS, unhashed_blocks_first=self.unhashed_blocks_first)
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

    def find(self, key: int) -> Block | None:
        return next((block for block in self.by_age if block.content == key), None)

    def matched(self, prompt: int, first: int, end: int) -> list[Block]:
        hit = []
        for number in range(first, end):
            block = self.find(content(prompt, number))
            if block is None:
                break
            hit.append(block)
        return hit

    @rule(prompt=st.integers(0, 2), first=st.integers(0, 2), end=st.integers(1, LONGEST), count=st.integers(0, 4))
    def come(self, prompt: int, first: int, end: int, count: int) -> None:
        """Hold what is cached of a part of the prompt, as a window does, and take blocks for more of it."""
        pieces, hit = self.cache.match(PROMPTS[prompt], first, end), self.matched(prompt, first, end)
        assert sum(piece.end - piece.start for piece in pieces) == len(hit)
        unheld = [block for block in hit if not block.holders]
        assert num_unheld(pieces) == len(unheld)
        if count + len(unheld) > len(self.free):
            return
        held = Held(first + len(hit))
        self.pool.touch(pieces, held)
        assert (held.first, held.end) == (first, first + len(hit))
        for block in hit:
            block.holders += 1
            if block in self.free:
                self.free.remove(block)
        self.pool.take(count)
        self.holders.append(Holder(prompt, first, hit, held, self.take(count)))

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def fill(self, data: st.DataObject) -> None:
        """Register the next blocks of a prompt: what was private can be found."""
        holder = data.draw(st.sampled_from(self.holders))
        count = data.draw(st.integers(0, min(len(holder.private), LONGEST - holder.held.end)))
        first = holder.held.end
        self.cache.register(PROMPTS[holder.prompt], holder.held, first + count)
        for number in range(first, first + count):
            block = holder.private.pop(0)
            block.content = content(holder.prompt, number)
            self.by_age.append(block)
            holder.keyed.append(block)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def pass_some(self, data: st.DataObject) -> None:
        """A window leaves the first of its blocks that can be found behind."""
        holder = data.draw(st.sampled_from(self.holders))
        count = data.draw(st.integers(0, len(holder.keyed)))
        assert holder.held.num_before(holder.first + count) == count
        self.pool.give_back(holder.held.cut_off(holder.first + count))
        passed, holder.keyed = holder.keyed[:count], holder.keyed[count:]
        holder.first += count
        self.free += self.dropped(passed)

    def dropped(self, blocks: list[Block]) -> list[Block]:
        """Those that nobody else holds, the last first."""
        for block in blocks:
            block.holders -= 1
        return [block for block in reversed(blocks) if not block.holders]

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        """Release everything, the tail first; of the private blocks all but the last are full."""
        holder = data.draw(st.sampled_from(self.holders))
        self.holders.remove(holder)
        num_unhashed = min(1, len(holder.private))
        self.pool.release(len(holder.private) - num_unhashed, num_unhashed)
        self.pool.give_back(holder.held.cut_off(LONGEST))
        for block in holder.private[: len(holder.private) - num_unhashed]:
            block.content = -1
        line = self.dropped(holder.keyed + holder.private)
        blank = [block for block in line if block.content is None]
        if self.unhashed_blocks_first:
            self.free = blank + self.free + [block for block in line if block.content is not None]
        else:
            self.free += line

    @invariant()
    def they_agree(self) -> None:
        """Free blocks, contents lost, and which contents can be found where are the same in both."""
        assert self.pool.num_free == len(self.free)
        assert self.pool.num_evictions == self.num_evictions
        for prompt, spans in enumerate(PROMPTS):
            for first in range(LONGEST):
                assert bool(self.cache.match(spans, first, first + 1)) == bool(self.matched(prompt, first, first + 1))
            for num_needed in (0, 1, 2, LONGEST):
                ends = [end for end in range(LONGEST + 1) if self.finds_the_last(prompt, end, num_needed)]
                assert self.cache.match_end(spans, LONGEST, num_needed) == max(ends)

    def finds_the_last(self, prompt: int, end: int, num_needed: int) -> bool:
        first = max(0, end - num_needed)
        return len(self.matched(prompt, first, end)) == end - first

    @invariant()
    def they_would_evict_alike(self) -> None:
        """How many contents the next blocks hold is told without taking them."""
        for count in range(len(self.free) + 1):
            num_contents = sum(block.content is not None for block in self.free[:count])
            assert self.pool.num_evictions_within(count) == num_contents


class OlderPoolMachine(PoolMachine):
    """The same with everything freed at the end of the line, as before vLLM 0.25.1."""

    unhashed_blocks_first = False


class NumberedPoolMachine(PoolMachine):
    """The same where each copy is known by its number, so that none of different age are told as one."""

    tells_copies_apart = True


TestPool = PoolMachine.TestCase
TestOlderPool = OlderPoolMachine.TestCase
TestNumberedPool = NumberedPoolMachine.TestCase
TestPool.settings = TestOlderPool.settings = TestNumberedPool.settings = examples(100, steps=25)
