"""Stack distances against a cache that is kept block by block, request by request."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sim
from sim.specs.engine import EngineConfig
from sim.workload.adapters import told_apart
from sim.workload.generate import generate
from sim.workload.named import find_workload
from sim.workload.readers import read_trace
from sim.workload.reuse import reusable_tokens
from sim.workload.spec import WorkloadSpec
from sim.workload.stack_distance import reuses
from sim.workload.trace import Segment, Trace
from tests.properties import examples
from tests.shared import SHARED, needs_shared
from tests.workload.makers import make_trace

Tokens = tuple[object, ...]


def spelt(path: Sequence[Segment]) -> Tokens:
    """Every token of a prompt by itself."""
    return tuple((content, at) for content, tokens in path for at in range(tokens))


def naive_hits(prompts: Sequence[Tokens], left: Sequence[Tokens], cache_blocks: int, size: int) -> int:
    """Blocks that prompts find in a cache which, when full, forgets the block that was used longest ago; a block is all that a
    prompt has up to its end.
    """
    cache: OrderedDict[Tokens, None] = OrderedDict()
    hits = 0
    for prompt, path in zip(prompts, left, strict=True):
        for end in range(size, len(prompt), size):
            if prompt[:end] not in cache:
                break
            hits += 1
        for end in range(len(path) // size * size, 0, -size):
            cache[path[:end]] = None
            cache.move_to_end(path[:end])
            if len(cache) > cache_blocks:
                cache.popitem(last=False)
    return hits


segments = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), min_size=1, max_size=4).map(tuple)


@given(prompts=st.lists(segments, min_size=1, max_size=12), adapters=st.lists(st.sampled_from("ab"), min_size=12))
@examples(150)
def test_hits_are_those_of_a_cache_kept_block_by_block(prompts: list[tuple[Segment, ...]], adapters: list[str]) -> None:
    """At every size of the cache, with blocks that straddle segments, and adapters that share nothing."""
    trace = make_trace(range(len(prompts)), segments=prompts, lora_name=tuple(adapters[: len(prompts)]))
    found = reuses(trace, block_size=4)
    whole = list(map(spelt, told_apart(trace).segments or ()))
    for cache_blocks in range(40):
        hits = naive_hits(whole, whole, cache_blocks, 4)
        assert found.hit_rate(4 * cache_blocks) == hits * 4 / found.prompt_tokens


turns = st.tuples(st.sampled_from("abc"), st.integers(1, 40), st.integers(1, 20))


@given(turns=st.lists(turns, min_size=1, max_size=12))
@examples(150)
def test_turns_find_what_was_said(turns: list[tuple[str, int, int]]) -> None:
    """A prompt begins with the turn before it and its answer but for the last token; a shorter one is the beginning of both."""
    session_id, prompt_tokens, output_tokens = zip(*turns, strict=True)
    trace = make_trace(
        range(len(turns)), prompt_tokens=prompt_tokens, output_tokens=output_tokens, session_id=session_id
    )
    prompts, left = list[Tokens](), list[Tokens]()
    said: dict[str, Tokens] = dict.fromkeys("abc", ())
    for row, (session, prompt, answer) in enumerate(turns):
        path: Tokens = (*said[session][:prompt], *((row, at) for at in range(prompt + answer - 1)))[
            : prompt + answer - 1
        ]
        said[session] = path
        prompts.append((*path, "last")[:prompt])
        left.append(path)
    found = reuses(trace, block_size=4)
    for cache_blocks in range(0, 60, 3):
        assert found.hit_rate(4 * cache_blocks) == naive_hits(prompts, left, cache_blocks, 4) * 4 / found.prompt_tokens


def test_gaps_and_sizes_of_three_requests() -> None:
    """Two blocks again after 5 s, behind one block of another; the prompt's last token is computed again."""
    trace = make_trace((0.0, 2.0, 5.0), segments=[((1, 33),), ((2, 16),), ((1, 33),)])
    found = reuses(trace)
    assert (found.distinct_blocks, found.enough_tokens) == (3, 48)
    assert [found.hit_rate(size) * 82 for size in (16, 31, 32, 47, 48, 10**12)] == [0, 0, 16, 16, 32, 32]
    assert (found.gap_percentile_s(0), found.gap_percentile_s(50), found.gap_percentile_s(100)) == (5.0, 5.0, 5.0)
    assert reuses(trace.first(2)).gap_percentile_s(50) is None


def test_answers_find_their_prompt_at_once() -> None:
    """The second answer to a prompt needs no more room than the prompt."""
    found = reuses(make_trace((0.0,), prompt_tokens=(33,), segments=[((0, 33),)], n=np.array([2])))
    assert (found.enough_tokens, found.hit_rate(32), found.gap_percentile_s(50)) == (32, 32 / 66, 0.0)


@pytest.mark.parametrize("name", ["multi-turn", "few-shot", "agentic"])
def test_with_room_for_everything_it_is_all_that_repeats(name: str) -> None:
    """A cache that is large enough finds what is counted without a stack, and one block less does not."""
    workload = find_workload(name).workload
    assert isinstance(workload, WorkloadSpec)
    trace = generate(replace(workload, num_requests=300))
    for one in (trace, replace(trace, segments=None), _without_sessions(trace)):
        if one.says_contents:
            found = reuses(one)
            assert found.hit_rate(found.enough_tokens) * found.prompt_tokens == pytest.approx(reusable_tokens(one))
            assert not found.enough_tokens or found.hit_rate(found.enough_tokens - 16) < found.hit_rate(10**15)


def _without_sessions(trace: Trace) -> Trace:
    return replace(trace, session_id=None, think_time_s=None)


@pytest.mark.parametrize(("name", "num_blocks"), [("multi-turn", 1300), ("multi-turn", 3000), ("few-shot", 1300)])
def test_the_engine_finds_hardly_less_and_never_more(name: str, num_blocks: int) -> None:
    """One block of the pool is vLLM's null block; answers and requests under way take some of the rest, and keep a block or two longer than LRU would."""
    trace = read_trace(name, limit=400)
    engine = EngineConfig(num_gpu_blocks_override=num_blocks, max_model_len=16_384)
    result = sim.simulate("Llama-3.1-8B", "h100-sxm", trace, engine=engine, intervals=False)
    bound = reuses(trace).hit_rate(16 * (num_blocks - 1))
    assert bound - 0.03 < result.summary["prefix_cache_hit_rate"] <= bound + 1e-4


@needs_shared
def test_mooncake_needs_tens_of_millions_of_tokens() -> None:
    """All that can be found, 37 %, takes room for 78 million tokens; a million, as one GPU may hold, find 5.5 %."""
    trace = read_trace(SHARED / "traces" / "mooncake_conversation.jsonl")
    found = reuses(trace)
    assert found.hit_rate(10**9) * found.prompt_tokens == pytest.approx(reusable_tokens(trace))
    assert found.enough_tokens == pytest.approx(78e6, rel=0.01)
    assert found.hit_rate(10**6) == pytest.approx(0.055, abs=0.001)
