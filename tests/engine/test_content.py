"""Which blocks of a trace's prompts get a key."""

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.content import shared_block_keys
from sim.engine.spans import Span
from sim.workload.trace import Trace

BLOCK_SIZE = 4
Prompt = tuple[tuple[int, int], ...]

lengths = st.one_of(st.sampled_from([4, 8]), st.integers(1, 9))
paths = st.lists(st.tuples(st.integers(0, 2), lengths), max_size=4).map(tuple)
aligned_paths = st.lists(st.tuples(st.integers(0, 2), st.sampled_from([4, 8])), max_size=4).map(tuple)


def trace_of(prompts: list[Prompt]) -> Trace:
    return Trace(
        request_id=tuple(f"r{row}" for row in range(len(prompts))),
        arrival_s=np.zeros(len(prompts)),
        prompt_tokens=np.array([sum(length for _, length in prompt) for prompt in prompts]),
        output_tokens=np.ones(len(prompts), dtype=np.int64),
        source="drawn",
        segments=tuple(prompts),
    )


def written_out(spans: list[Span]) -> list[int]:
    """The key of each block."""
    return [span.key + block - span.block for span in spans for block in range(span.block, span.end)]


def keys_of(prompts: list[Prompt], num_ahead: int = 0) -> tuple[list[list[int]], int]:
    """The keys of all, asked for in two parts, and the number of keys."""
    spans, num_keys = shared_block_keys(trace_of(prompts), np.ones(len(prompts), dtype=np.int64), BLOCK_SIZE, num_ahead)
    half = len(prompts) // 2
    parts = spans[slice(0, half)] + spans[slice(half, len(prompts) + 1)]
    return [written_out(part) for part in parts], num_keys


def blocks_of(prompt: Prompt, num_ahead: int) -> list[tuple[object, ...]]:
    """Each full block as all tokens up to and in it and so many behind it, a token as its content and its number in it."""
    tokens = [(content, number) for content, length in prompt for number in range(length)]
    return [tuple(tokens[:end]) for end in range(BLOCK_SIZE + num_ahead, len(tokens) + 1, BLOCK_SIZE)]


@given(
    st.one_of(st.lists(paths, min_size=1, max_size=6), st.lists(aligned_paths, min_size=1, max_size=6)),
    st.integers(0, BLOCK_SIZE + 1),
)
def test_equal_keys_mean_equal_tokens_up_to_and_in_a_block(prompts: list[Prompt], num_ahead: int) -> None:
    """Blocks that two prompts share have one key, in aligned segments or not, and with whatever their keys cover behind them."""
    keys, num_keys = keys_of(prompts, num_ahead)
    blocks = [blocks_of(prompt, num_ahead) for prompt in prompts]
    for (mine, my_keys), (yours, your_keys) in combinations(zip(blocks, keys, strict=True), 2):
        num_shared = sum(a == b for a, b in zip(mine, yours, strict=False))
        assert my_keys[:num_shared] == your_keys[:num_shared]
        assert not set(my_keys[num_shared:]) & set(your_keys[num_shared:])
    for number, (mine, my_keys) in enumerate(zip(blocks, keys, strict=True)):
        others = {block for other, theirs in enumerate(blocks) if other != number for block in theirs}
        assert len(my_keys) == len(set(my_keys)) >= sum(block in others for block in mine)
        assert all(0 <= key < num_keys for key in my_keys)


@given(st.one_of(st.lists(paths, min_size=1, max_size=6), st.lists(aligned_paths, min_size=1, max_size=6)))
def test_whoever_has_a_key_has_a_span_that_begins_where_that_of_all_others_does(prompts: list[Prompt]) -> None:
    """So that copies of a content are looked for in one chain."""
    spans, _ = shared_block_keys(trace_of(prompts), np.ones(len(prompts), dtype=np.int64), BLOCK_SIZE)
    begins: dict[int, tuple[int, int]] = {}
    for mine in spans[slice(0, len(prompts))]:
        assert [span.block for span in mine] == [0, *(span.end for span in mine)][: len(mine)]
        for span in mine:
            for key in range(span.key, span.key + span.end - span.block):
                assert begins.setdefault(key, (span.key, span.block)) == (span.key, span.block)


def test_what_nobody_shares_costs_no_key() -> None:
    """Two prompts with a common first segment: the second ones of each get no keys."""
    keys, num_keys = keys_of([((0, 8), (1, 4)), ((0, 8), (2, 8)), ((3, 4),)])
    assert keys == [[0, 1], [0, 1], []]
    assert num_keys == 2


def test_a_way_is_its_contents_and_their_lengths() -> None:
    """A content behind 8 tokens of one and behind 4 of another is not the same, whatever numbers they go by."""
    keys, num_keys = keys_of([((0, 8), (9, 4)), ((1, 4),), ((2, 4),), ((3, 4),), ((4, 4), (9, 4))])
    assert ([len(part) for part in keys], num_keys) == ([0] * 5, 0)


def test_empty_prompts_have_no_blocks() -> None:
    """vLLM's bare scheduler takes prompts of no token, first, last or between."""
    keys, _ = keys_of([(), ((0, 4),), (), ((0, 4),), ()])
    assert keys == [[], [0], [], [0], []]
