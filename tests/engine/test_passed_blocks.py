"""Blocks that windows have passed lie in the free list as a number; who is preempted finds its own among them."""

from sim.engine.block_pool import BlockPool
from sim.engine.keyed_blocks import KeyedBlocks
from sim.engine.passed_blocks import PassedBlock, PassedByMany, PassedByOne, Passing
from sim.engine.prefix_cache import PrefixCache
from sim.engine.spans import Span


def test_a_chunk_passes_its_last_block_first() -> None:
    """Blocks 2, 3 and 4 of KV group 1: place 0 is block 4."""
    passed = PassedByOne(serial=7, group=1, end=5)
    assert passed.of(7, 0, 3) == [PassedBlock(0, 1, 4), PassedBlock(1, 1, 3), PassedBlock(2, 1, 2)]
    assert passed.of(7, 2, 3) == [PassedBlock(2, 1, 2)]
    assert passed.of(6, 0, 3) == []


def test_decodes_pass_blocks_pass_by_pass_in_order_of_admission() -> None:
    """Blocks of 2 tokens from pass 10 on: 3 and 5 pass one in even passes, 4 in odd ones, counted from passes 4, 8 and 7."""
    passed = PassedByMany(10, [(Passing(3, 0, 4), Passing(5, 0, 8)), (Passing(4, 0, 7),)])
    assert passed.of(5, 0, 6) == [PassedBlock(1, 0, 0), PassedBlock(4, 0, 1)]
    assert passed.of(4, 0, 6) == [PassedBlock(2, 0, 1), PassedBlock(5, 0, 2)]
    assert passed.of(3, 3, 6) == [PassedBlock(3, 0, 3)]


def test_what_is_named_keeps_its_place_in_the_free_list() -> None:
    """Of 6 blocks, places 0 to 5, place 0 has been taken; 2 and 5 are named, and two blocks more evict the first of them."""
    cache, keyed = PrefixCache(), KeyedBlocks([Span(0, 0, 3)], [0])
    pool = BlockPool(6, unhashed_blocks_first=True)
    pool.take(6)
    pool.release_passed(6, PassedByMany(10, [(Passing(3, 0, 4), Passing(5, 0, 8)), (Passing(4, 0, 7),)]))
    pool.take(1)
    pool.name_passed_blocks(4, keyed, [cache])
    assert [bool(cache.match(keyed.spans, block, block + 1)) for block in range(3)] == [False, True, True]
    pool.take(2)
    assert [bool(cache.match(keyed.spans, block, block + 1)) for block in range(3)] == [False, False, True]
    assert (pool.num_free, pool.num_evictions) == (3, 3)
