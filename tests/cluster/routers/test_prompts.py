"""What prompts have in common, and the index over it."""

from dataclasses import replace
from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.routers.prefix_index import PrefixIndex
from sim.cluster.routers.prompts import PromptTree, prompts_as_sent
from sim.cluster.routers.stretches import by_replica, in_columns
from sim.workload.trace import Segment
from tests.cluster.routers.makers import prompts

segments = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 6)), min_size=1, max_size=4)


def tokens(path: list[Segment]) -> list[tuple[int, int]]:
    return [(content, number) for content, length in path for number in range(length)]


@given(st.lists(segments, min_size=1, max_size=6))
def test_two_prompts_share_nodes_as_far_as_their_tokens_are_equal(paths: list[list[Segment]]) -> None:
    tree = PromptTree(paths)
    for one, other in product(range(len(paths)), repeat=2):
        mine, theirs = tokens(paths[one]), tokens(paths[other])
        common = next((n for n, pair in enumerate(zip(mine, theirs, strict=False)) if pair[0] != pair[1]), None)
        common = min(len(mine), len(theirs)) if common is None else common
        shared = [node for node in tree.path(one) if node in tree.path(other)]
        assert (tree.end_tokens[shared[-1]] if shared else 0) == common
        assert one == other or all(tree.is_shared[node] for node in shared)
    for row, path in enumerate(paths):
        for size in (1, 4):
            assert sum(tree.num_blocks(size)[node] for node in tree.path(row)) == len(tokens(path)) // size
            assert sum(tree.num_blocks(size, 7)[node] for node in tree.path(row)) == min(7, len(tokens(path))) // size


def test_private_prompts_share_nothing() -> None:
    same = PromptTree([((1, 40),), ((1, 40),)])
    assert same.path(0) == same.path(1)
    alone = PromptTree([((1, 40),), ((2, 40),)])
    assert alone.path(0) != alone.path(1)
    assert not any(alone.is_shared[node] for node in (*alone.path(0), *alone.path(1)))


def test_a_turn_begins_with_what_was_said_before_it() -> None:
    """100 and 100 + 30 tokens of answer; then 150, which repeats all of it, and 80, a beginning; another session shares nothing."""
    lengths = np.array([100, 150, 100, 80])
    trace = replace(prompts(*(((0, tokens),) for tokens in lengths), session_id=("a", "a", "b", "a")), segments=None)
    tree = PromptTree(prompts_as_sent(trace, np.array([30, 10, 30, 10])))
    first, second, other, beginning = ([tree.end_tokens[node] for node in tree.path(row)] for row in range(4))
    assert (first, second, other, beginning) == ([80, 100], [80, 100, 150], [100], [80])
    assert not tree.is_shared[tree.end(1)]


def test_where_prompts_are_sent_again_those_that_nobody_shares_are_kept_too() -> None:
    for sends_again, found in ((True, [(0b10, 4)]), (False, [])):
        tree = PromptTree([((1, 40),), ((2, 40),)], sends_again=sends_again)
        index = PrefixIndex(tree, tree.num_blocks(10), [100, 100])
        index.add(tree.path(0), 1)
        assert index.matched(tree.path(0)) == found


def test_the_first_block_of_the_oldest_prompt_goes_first() -> None:
    """Replica 1 has lost a head that replica 0 holds: its tail still counts, as each block counts by itself."""
    head, long = (1, 40), (2, 60)
    tree = PromptTree([(head, long), (head, (3, 20)), (head, long, (4, 10))])
    index = PrefixIndex(tree, tree.num_blocks(10), [8, 8])
    index.add(tree.path(0), 1)
    assert index.matched(tree.path(0)) == []  # nobody holds its first block
    index.add(tree.path(1), 0)
    assert by_replica(index.matched(tree.path(2))) == {0: 4, 1: 8}
    assert by_replica(index.matched(tree.path(1))) == {0: 4, 1: 2}


def test_stretches_add_up_one_by_one_as_they_do_in_columns() -> None:
    """A hundred replicas hold the beginning, every third what follows, and one a last half block in host memory."""
    stretches = [
        ((1 << 100) - 1, 300),
        (sum(1 << replica for replica in range(0, 100, 3)), 2),
        (1 << 7, 0.5),
    ]
    held = by_replica(stretches)
    assert [held[replica] for replica in (0, 1, 7, 99)] == [302, 300, 300.5, 302]
    assert in_columns(stretches, 100).tolist() == [held[replica] for replica in range(100)]
