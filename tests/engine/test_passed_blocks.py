"""Blocks that windows have passed lie in the free list as a number; who is preempted finds its own among them."""

from sim.engine.block_pool import BlockPool
from sim.engine.keyed_blocks import KeyedBlocks
from sim.engine.passed_blocks import PassedBlock, PassedBlocks
from sim.engine.prefix_cache import PrefixCache
from sim.engine.spans import Span


def test_a_chunk_passes_its_last_block_first() -> None:
    """Blocks 2, 3 and 4 of KV group 1: place 0 is block 4."""
    passed = PassedBlocks(block_size=2, num_groups=2)
    passed.pass_together(passed.window(7, 1), 2, 3)
    passed.give_places(3)
    assert passed.of(7, 0) == [PassedBlock(0, 1, 4), PassedBlock(1, 1, 3), PassedBlock(2, 1, 2)]
    assert passed.of(7, 2) == [PassedBlock(2, 1, 2)]
    assert passed.of(6, 0) == []


def counted(count: int) -> PassedBlocks:
    """Blocks of 2 tokens from pass 10 on: 3 and 5 pass one in even passes, 4 in odd ones, counted from passes 4, 8 and 7.

    Before pass 14, in which 5 is the last to pass one, 3 passes two at once.
    """
    passed = PassedBlocks(block_size=2)
    for window, begin in ((3, 4), (5, 8), (4, 7)):
        passed.begin(window, begin, 10)
    passed.give_places(6)
    passed.next_step = 14
    for window, begin in ((3, 4), (4, 7)):
        passed.end(window, begin, 14)
    passed.pass_together(3, 4, 2)
    passed.give_places(count - 6)
    passed.next_step = 15
    passed.end(5, 8, 15)
    return passed


def test_decodes_pass_blocks_pass_by_pass_in_order_of_admission() -> None:
    """Of place 8 on only 5 has one; places 6 and 7 are those that 3 passed at once."""
    passed = counted(9)
    assert passed.of(5, 0) == [PassedBlock(1, 0, 0), PassedBlock(4, 0, 1), PassedBlock(8, 0, 2)]
    assert passed.of(4, 0) == [PassedBlock(2, 0, 1), PassedBlock(5, 0, 2)]
    assert passed.of(3, 3) == [PassedBlock(3, 0, 3), PassedBlock(6, 0, 5), PassedBlock(7, 0, 4)]


def test_a_block_with_a_name_has_no_place() -> None:
    """In passes 10 and 12 the second block passed is a copy that can be found; pass 11 comes between."""
    passed = PassedBlocks(block_size=2)
    for window, begin in ((3, 4), (5, 8), (4, 7)):
        passed.begin(window, begin, 10)
    passed.give_places(1)
    passed.pass_by_name()
    passed.give_places(2)
    passed.next_step = 13
    passed.pass_by_name()
    for window, begin in ((3, 4), (5, 8), (4, 7)):
        passed.end(window, begin, 13)
    assert passed.of(4, 0) == [PassedBlock(1, 0, 1)]
    assert passed.of(3, 0) == [PassedBlock(0, 0, 2), PassedBlock(2, 0, 3)]
    assert passed.of(5, 0) == []


def test_what_nobody_asks_for_is_forgotten() -> None:
    """What was passed before place 6 has been taken."""
    passed = counted(9)
    passed.forget_before(6)
    assert passed.of(5, 6) == [PassedBlock(8, 0, 2)]
    assert passed.of(3, 6) == [PassedBlock(6, 0, 5), PassedBlock(7, 0, 4)]


def test_what_is_named_keeps_its_place_in_the_free_list() -> None:
    """Of 6 blocks, places 0 to 5, place 0 has been taken; 2 and 5 are named, and two blocks more evict the first of them."""
    cache, keyed = PrefixCache(), KeyedBlocks([Span(0, 0, 3)], [0])
    passed = PassedBlocks(block_size=2)
    pool = BlockPool(6, unhashed_blocks_first=True, passed=passed)
    pool.take(6)
    for window, begin in ((3, 4), (5, 8), (4, 7)):
        passed.begin(window, begin, 10)
    pool.release_passed(6)
    passed.next_step = 14
    passed.end(4, 7, 14)
    pool.take(1)
    pool.name_passed_blocks(4, keyed, [cache])
    assert [bool(cache.match(keyed.spans, block, block + 1)) for block in range(3)] == [False, True, True]
    pool.take(2)
    assert [bool(cache.match(keyed.spans, block, block + 1)) for block in range(3)] == [False, False, True]
    assert (pool.num_free, pool.num_evictions) == (3, 3)
