"""The figures of a trace, on traces small enough to count."""

from dataclasses import replace

import numpy as np
import pytest

from sim.workload.describe import describe
from sim.workload.readers import read_trace
from sim.workload.reuse import reusable_tokens
from sim.workload.tile import tile
from tests.shared import SHARED, needs_shared
from tests.workload.makers import make_trace


def test_counts_rates_and_lengths() -> None:
    """Five requests in 40 s; 10 s hold two of them, not the one that comes as they end."""
    trace = make_trace(
        (100.0, 110.0, 112.0, 120.0, 140.0), prompt_tokens=(1, 2, 3, 4, 90), output_tokens=(1, 1, 1, 1, 6)
    )
    figures = describe(trace)
    assert (figures.num_requests, figures.duration_s) == (5, 40.0)
    assert figures.mean_rate_rps == 4 / 40
    assert figures.peak_rate_rps == 2 / 10
    assert figures.gap_cv == np.std([10, 2, 8, 20]) / 10
    assert (figures.prompt_tokens.total, figures.prompt_tokens.p50, figures.prompt_tokens.max) == (100, 3.0, 90)
    assert (figures.output_tokens.mean, figures.output_tokens.p90) == (2.0, 4.0)


def test_a_burst_has_no_rate() -> None:
    """All at once is no number of requests a second, nor is a single request."""
    for trace in (make_trace((7.0, 7.0)), make_trace((7.0,))):
        figures = describe(trace)
        assert (figures.mean_rate_rps, figures.peak_rate_rps, figures.gap_cv) == (None, None, None)


def test_sessions_and_priorities_are_counted() -> None:
    """Optional columns show up when they are there."""
    figures = describe(make_trace(session_id=("a", "b", "a"), priority=np.array([1, 0, 1])))
    assert (figures.num_sessions, figures.requests_by_priority) == (2, {0: 1, 1: 2})
    assert describe(make_trace()).num_sessions is None


def test_answers_beyond_the_first_find_their_prompt() -> None:
    """Of 33 tokens two blocks, for two of three answers."""
    figures = describe(make_trace((0.0, 1.0), prompt_tokens=(33, 33), n=np.array([3, 1])))
    assert (figures.num_answers, figures.max_prefix_cache_hit_rate) == (4, 2 * 32 / (4 * 33))
    assert (describe(make_trace()).num_answers, describe(make_trace()).max_prefix_cache_hit_rate) == (None, None)
    assert describe(tile(make_trace(n=np.array([2, 1, 1])), 2)).num_answers == 8


def test_turns_reuse_what_was_said() -> None:
    """160 + 160 tokens and a prompt of 480: the last token of the answer is never computed, so 304 of 640 at best."""
    turns = make_trace((0.0, 9.0), prompt_tokens=(160, 480), output_tokens=(160, 160), session_id=("a", "b"))
    assert describe(turns).max_prefix_cache_hit_rate == 0
    assert describe(replace(turns, session_id=("a", "a"))).max_prefix_cache_hit_rate == 304 / 640
    hashed = replace(turns, session_id=("a", "a"), segments=[((1, 160),), ((1, 160), (2, 320))])
    assert reusable_tokens(hashed) == 304


@pytest.mark.parametrize(
    ("segments", "reusable"),
    [
        ([((1, 32),), ((1, 32),)], 16),  # the last token is always computed, so the last whole block is too
        ([((1, 32),), ((1, 32), (2, 1))], 32),
        ([((1, 32), (2, 16)), ((1, 32), (3, 16))], 32),
        ([((1, 40),), ((1, 512),)], 32),  # a partial block is a prefix of the whole one
        ([((1, 512),), ((1, 40), (2, 40))], 32),
        ([((1, 16), (2, 16)), ((2, 16), (1, 16))], 0),  # equal content elsewhere is no equal prefix
        ([((1, 16), (2, 16)), ((3, 16), (2, 16), (1, 16))], 0),
        ([((1, 20), (2, 20)), ((1, 512), (2, 20))], 16),  # after a longer first segment the second stands elsewhere
        ([((1, 64),), ((1, 64),), ((1, 65),)], 48 + 64),
        ([((1, 64),), ((1, 33),), ((1, 65),)], 32 + 64),  # a shorter repeat forgets nothing
    ],
)
def test_reusable_tokens_are_whole_blocks_of_equal_prefixes(
    segments: list[tuple[tuple[int, int], ...]], reusable: int
) -> None:
    """What a cache without limit would serve, by vLLM's lookup rule."""
    assert reusable_tokens(make_trace(range(len(segments)), segments=segments)) == reusable


@needs_shared
@pytest.mark.parametrize(("limit", "share"), [(3000, 0.32), (None, 0.37)])
def test_mooncake_repeats_its_known_share(limit: int | None, share: float) -> None:
    """37 % of Mooncake's prompt tokens can come from a cache, 32 % of those of its first 3,000 requests."""
    figures = describe(read_trace(SHARED / "traces" / "mooncake_conversation.jsonl", limit=limit))
    assert figures.max_prefix_cache_hit_rate == pytest.approx(share, abs=0.005)


def test_tiling_repeats_the_shape() -> None:
    """Copies follow a mean gap apart, names stay unique, totals multiply."""
    trace = make_trace((5.0, 6.0, 9.0), session_id=("a", "a", "b"), priority=np.array([0, 1, 2]))
    tiled = tile(trace, 2)
    assert tiled.arrival_s.tolist() == [5.0, 6.0, 9.0, 11.0, 12.0, 15.0]
    assert tiled.request_id == ("r0-0", "r1-0", "r2-0", "r0-1", "r1-1", "r2-1")
    assert tiled.session_id == ("a-0", "a-0", "b-0", "a-1", "a-1", "b-1")
    assert tiled.priority is not None
    assert tiled.priority.tolist() == [0, 1, 2, 0, 1, 2]
    assert describe(tiled).mean_rate_rps == describe(trace).mean_rate_rps


def test_tiling_shares_prefixes_only_when_told() -> None:
    """By default a second copy meets a cold cache; with shared prefixes it finds all of the first."""
    trace = make_trace((0.0, 1.0), segments=[((0, 16), (1, 1)), ((0, 16), (2, 1))])
    assert reusable_tokens(tile(trace, 3)) == 3 * 16
    assert reusable_tokens(tile(trace, 3, share_prefixes=True)) == 5 * 16


def test_tiling_needs_a_copy() -> None:
    """No copies would be no trace."""
    with pytest.raises(Exception, match="`copies` must be at least 1, got 0"):
        tile(make_trace(), 0)
