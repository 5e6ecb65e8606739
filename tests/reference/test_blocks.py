"""The block pool of the naive engine: which block is taken next, what is found, and that nothing is lost."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.properties import examples
from tests.reference.blocks import BlockPool

A, B, C = (0, 101), (0, 102), (0, 103)


def test_blocks_are_taken_in_order_and_never_the_null_block() -> None:
    """Ten blocks leave 1 to 9 to hand out."""
    pool = BlockPool(10)
    assert pool.take(3) == [1, 2, 3]
    assert list(pool.free_blocks) == [4, 5, 6, 7, 8, 9]


def test_contents_line_up_at_the_end_and_blocks_without_go_to_the_front() -> None:
    """Statement 2: A frees 1 (hashed) and 2 (not); then B frees 3, 4 (hashed) and C 5 (hashed), 6 (not)."""
    pool = BlockPool(20)
    tables = [pool.take(2), pool.take(2), pool.take(2)]
    for number, block in enumerate((1, 3, 4, 5)):
        pool.keep_content(block, (0, number))
    pool.release(tables[0])
    assert list(pool.free_blocks) == [2, *range(7, 20), 1]
    pool.release(tables[1])
    pool.release(tables[2])
    assert list(pool.free_blocks) == [6, 2, *range(7, 20), 1, 4, 3, 5]


def test_older_versions_put_everything_at_the_end() -> None:
    """Statement 2 up to 0.21: blocks without content line up too, a table's tail first."""
    pool = BlockPool(5, unhashed_blocks_first=False)
    blocks = pool.take(3)
    pool.keep_content(1, A)
    pool.release(blocks)
    assert list(pool.free_blocks) == [4, 3, 2, 1]


def test_with_nothing_cached_the_tail_is_reused_first() -> None:
    """Three blocks without content go to the front of the list, the last of the table foremost."""
    pool = BlockPool(6)
    pool.release(pool.take(3))
    assert list(pool.free_blocks) == [3, 2, 1, 4, 5]


def test_taking_a_block_evicts_its_content() -> None:
    """A content is found until its block is handed out again."""
    pool = BlockPool(2)
    pool.keep_content(pool.take(1)[0], A)
    pool.release([1])
    assert (pool.find(A), pool.num_evictions) == (1, 0)
    assert pool.take(1) == [1]
    assert (pool.find(A), pool.num_evictions) == (None, 1)


def test_the_oldest_of_equal_contents_is_found() -> None:
    """Two blocks of the same content stay apart; when the older is evicted the younger is found."""
    pool = BlockPool(3)
    for block in pool.take(2):
        pool.keep_content(block, A)
    assert pool.find(A) == 1
    pool.release([2, 1])
    pool.take(1)
    assert pool.find(A) == 2


def test_a_block_held_twice_is_free_when_both_let_go() -> None:
    """Touching a free block takes it from the list; it returns with its last holder."""
    pool = BlockPool(3)
    pool.keep_content(pool.take(1)[0], A)
    pool.release([1])
    assert pool.num_free_among([1]) == 1
    pool.touch([1])
    pool.touch([1])
    assert (pool.num_free_among([1]), pool.num_free_blocks) == (0, 1)
    pool.release([1])
    assert pool.num_free_blocks == 1
    pool.release([1])
    assert list(pool.free_blocks) == [2, 1]


class PoolMachine(RuleBasedStateMachine):
    """Any order of takes, hits and releases, against tables kept in plain lists."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(8)
        self.tables: list[list[int]] = []

    @rule(count=st.integers(1, 4), contents=st.lists(st.sampled_from([A, B, C]), max_size=4))
    def take(self, count: int, contents: list[tuple[int, int]]) -> None:
        count = min(count, self.pool.num_free_blocks)
        self.tables.append(self.pool.take(count))
        for block, content in zip(self.tables[-1], contents, strict=False):
            self.pool.keep_content(block, content)

    @rule(content=st.sampled_from([A, B, C]))
    def hit(self, content: tuple[int, int]) -> None:
        block = self.pool.find(content)
        if block is not None:
            self.pool.touch([block])
            self.tables.append([block])

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.pool.release(self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1))))

    @invariant()
    def free_and_held_make_up_the_pool(self) -> None:
        held = {block for table in self.tables for block in table}
        free = list(self.pool.free_blocks)
        assert sorted([*held, *free]) == list(range(1, 8))
        self.pool.check_integrity()


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = examples(30, steps=25)
