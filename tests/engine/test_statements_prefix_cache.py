"""Which tokens are found in the cache, and what windows give back."""

from sim.engine.config import KVGroup
from tests.engines import Engine
from tests.makers import Ask, run


def test_a_prompt_is_shared_within_the_step_that_computes_it(engine: Engine) -> None:
    """Statement 20: A and B ask the same 10 tokens at once; B hits the two full blocks that A computes in that step."""
    done = run(engine, [Ask("A", 10, 1), Ask("B", (("A", 10),), 1)])
    assert done.tokens == [{"A": 10, "B": 2}]
    assert done.column("hits") == [{"B": 8}]


def test_a_full_hit_recomputes_the_last_whole_block(engine: Engine) -> None:
    """Statement 21: B asks the 12 tokens that A left in the cache: 8 are hit, 4 computed."""
    done = run(engine, [Ask("A", 12, 1), Ask("B", (("A", 12),), 1, at=1)])
    assert done.tokens == [{"A": 12}, {"B": 4}]
    assert done.of("B", "num_cached_tokens") == 8


def test_chunks_can_be_hit_as_soon_as_they_are_scheduled(engine: Engine) -> None:
    """Statement 22: budget 8; A's two chunks take s1 and s2, then B of the same 16 tokens hits 12."""
    done = run(engine, [Ask("A", 16, 1), Ask("B", (("A", 16),), 1)], max_num_batched_tokens=8)
    assert done.tokens == [{"A": 8}, {"A": 8}, {"B": 4}]
    assert done.column("hits")[2] == {"B": 12}


def test_hit_tokens_cost_no_budget(engine: Engine) -> None:
    """Statement 23: budget 8; B19 with 16 tokens cached takes 3 and leaves 5 to C9."""
    asks = [Ask("A", 16, 1), Ask("B", (("A", 16), (1, 3)), 1, at=2), Ask("C", 9, 1, at=2)]
    done = run(engine, asks, max_num_batched_tokens=8)
    assert done.tokens[2:] == [{"B": 3, "C": 5}, {"C": 4}]


def test_outputs_are_cached_but_for_the_last_token(engine: Engine) -> None:
    """Statement 24: 6 + 7 tokens leave 12 in the cache, 3 blocks; 6 + 6 leave 11, of which 2 blocks are full."""
    for output, hit, computed in ((7, 12, 4), (6, 8, 7)):
        asks = [Ask("A", 6, output), Ask("B", (("A", 6 + output), (1, 3)), 1, at=output)]
        done = run(engine, asks)
        assert done.tokens[-1] == {"B": computed}
        assert done.of("B", "num_cached_tokens") == hit


def test_the_least_recently_used_contents_are_evicted_tail_first(engine: Engine) -> None:
    """Statement 25: C evicts A's second block; A's re-ask hits its first and evicts both of B's."""
    asks = [
        Ask("A", 8, 1),
        Ask("B", 8, 1, at=1),
        Ask("C", 12, 1, at=2),
        Ask("A2", (("A", 8), (1, 1)), 1, at=3),
        Ask("B2", (("B", 8), (2, 1)), 1, at=4),
    ]
    done = run(engine, asks, num_gpu_blocks=7)
    assert done.tokens == [{"A": 8}, {"B": 8}, {"C": 12}, {"A2": 5}, {"B2": 9}]
    assert done.column("hits") == [{}, {}, {}, {"A2": 4}, {}]
    assert done.column("evicted")[:4] == [0, 0, 1, 2]


def test_the_gate_counts_hits_that_stand_in_the_free_list(engine: Engine) -> None:
    """B16 hits 8 tokens that nobody holds: 2 free blocks to hold and 2 to take; with 3 free it waits until C is done."""
    asks = [Ask("A", 8, 1), Ask("C", 4, 6, at=1), Ask("B", (("A", 8), (1, 8)), 1, at=2)]
    admitted = {}
    for num_gpu_blocks in (5, 6):
        done = run(engine, asks, num_gpu_blocks=num_gpu_blocks, max_num_batched_tokens=5)
        assert done.column("free_after")[1] == num_gpu_blocks - 2
        admitted[num_gpu_blocks] = done.of("B", "first_scheduled_s")
    assert admitted == {5: done.of("C", "finish_s"), 6: 2}


def test_a_hit_ends_at_the_first_difference(engine: Engine) -> None:
    """B shares A's first 8 and last 4 tokens: what follows a difference is other content, however equal its tokens."""
    asks = [Ask("A", ((1, 8), (2, 4), (3, 4)), 1), Ask("B", ((1, 8), (4, 4), (3, 4)), 1, at=1)]
    assert run(engine, asks).of("B", "num_cached_tokens") == 8


def test_equal_segments_in_other_places_are_other_content(engine: Engine) -> None:
    """Segment 2 follows 8 tokens of segment 1 in A and 4 in B: only those 4 are shared."""
    asks = [Ask("A", ((1, 8), (2, 4), (3, 1)), 1), Ask("B", ((1, 4), (2, 4), (3, 1)), 1, at=1)]
    assert run(engine, asks).of("B", "num_cached_tokens") == 4


def test_the_oldest_of_several_copies_is_hit(engine: Engine) -> None:
    """A, B and C each leave a copy of a block, W another content between the last two; E evicts A's copy.

    D then holds B's copy, not C's, so that W's content comes next and is gone when it is asked for again.
    """
    asks = [
        Ask("A", 8, 1),
        Ask("B", (("A", 8),), 1, at=1),
        Ask("W", 4, 1, at=2),
        Ask("C", (("A", 8),), 1, at=3),
        Ask("E", 4, 1, at=4),
        Ask("D", (("A", 8), (1, 4)), 1, at=5),
        Ask("W2", (("W", 4), (2, 1)), 1, at=6),
    ]
    done = run(engine, asks, num_gpu_blocks=6)
    assert done.column("evicted") == [0, 0, 0, 0, 1, 1, 2]
    assert done.column("hits") == [{}, {"B": 4}, {}, {"C": 4}, {}, {"D": 8}, {}]


def test_tokens_are_equal_wherever_their_segments_are_cut(engine: Engine) -> None:
    """A's 10 tokens and one of its own make a block with B's, whose prompt repeats all 12 and adds 4."""
    asks = [Ask("A", ((1, 10), (2, 2)), 1), Ask("B", (("A", 12), (3, 4)), 1, at=1), Ask("C", ((1, 9), (2, 3)), 1, at=2)]
    done = run(engine, asks)
    assert [done.of(name, "num_cached_tokens") for name in "ABC"] == [0, 12, 8]


def test_nothing_is_hit_with_caching_off(engine: Engine) -> None:
    """Two equal prompts are both computed in full."""
    done = run(engine, [Ask("A", 8, 1), Ask("B", (("A", 8),), 1, at=1)], enable_prefix_caching=False)
    assert done.tokens == [{"A": 8}, {"B": 8}]
    assert (done.records.prefix_cache_hits, done.records.num_evictions) == (0, 0)


def test_hits_are_counted_in_tokens_at_first_admission(engine: Engine) -> None:
    """20 tokens of two prompts were looked up and 8 found; a resumed request does not count again."""
    shared = run(engine, [Ask("A", 10, 1), Ask("B", (("A", 10),), 1)])
    assert (shared.records.prefix_cache_queries, shared.records.prefix_cache_hits) == (20, 8)
    resumed = run(engine, [Ask("A", 12, 6), Ask("B", 12, 8)], num_gpu_blocks=8)
    assert (resumed.records.prefix_cache_queries, resumed.records.prefix_cache_hits) == (24, 0)


def test_a_sliding_window_gives_back_what_it_has_passed(engine: Engine) -> None:
    """Statement 36: window 8 and 16 tokens: s2 has passed 9, so 2 blocks are given back; the third follows in s5."""
    done = run(
        engine, [Ask("A", 16, 9)], num_gpu_blocks=50, enable_prefix_caching=False, kv_groups=(KVGroup(window=8),)
    )
    assert done.column("free") == [45, 46, 46, 46, 47, 46, 46, 46, 47]


def test_full_and_window_groups_each_hold_a_table(engine: Engine) -> None:
    """Statement 37: 20 tokens take 5 blocks in each group; a follow-up of 2 tokens hits 20 and takes one in each."""
    asks = [Ask("A", 20, 2), Ask("B", (("A", 20), (1, 2)), 1, at=2)]
    done = run(engine, asks, num_gpu_blocks=50, kv_groups=(KVGroup(), KVGroup(window=8)))
    assert done.column("sched") == [[["A", 20, 0, 10]], [["A", 1, 20, 2]], [["B", 2, 20, 2]]]
    assert done.column("free") == [39, 40, 40]
