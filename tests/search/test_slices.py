"""Slices stand for the trace they are cut from."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sim.search.slices import WHOLE, Slice, representative, split_windows, window_edges
from tests.search.makers import make_trace


@given(st.integers(1, 400), st.integers(0, 20))
def test_windows_are_either_seen_or_held_out(num_requests: int, seed: int) -> None:
    """A fifth is held out, one in every five windows in a row; a lone request is both."""
    split = split_windows(num_requests, seed)
    count = len(window_edges(num_requests)) - 1
    assert set(split.seen) | set(split.held_out) == set(range(count))
    assert split.seen
    assert split.held_out
    assert num_requests == 1 or set(split.seen).isdisjoint(split.held_out)
    if count >= 5:
        assert all(sum(window // 5 == five for window in split.held_out) == 1 for five in range(count // 5))


@given(st.integers(2, 400), st.floats(0.01, 1.0), st.integers(0, 20))
def test_a_slice_is_drawn_from_all_along_the_trace(num_requests: int, share: float, seed: int) -> None:
    """Windows ascend, are different, and are from as many equal stretches."""
    seen = split_windows(num_requests, seed).seen
    windows = representative(seen, share, np.random.default_rng(seed)).windows
    assert list(windows) == sorted(set(windows))
    assert set(windows) <= set(seen)
    assert len(windows) == max(1, round(share * len(seen)))


@given(st.integers(2, 300), st.sets(st.integers(0, 49), min_size=1))
def test_a_slice_has_its_requests_with_their_gaps(num_requests: int, wanted: set[int]) -> None:
    """Rows are those of the windows; inside a window gaps are the trace's, over a hole there is one mean gap."""
    trace = make_trace(num_requests)
    edges = window_edges(num_requests)
    windows = tuple(sorted(window for window in wanted if window < len(edges) - 1)) or (0,)
    cut = Slice(windows).cut(trace)
    rows = np.concatenate([np.arange(edges[window], edges[window + 1]) for window in windows])
    assert cut.request_id == tuple(trace.request_id[row] for row in rows)
    mean_gap_s = trace.duration_s / (num_requests - 1)
    expected = np.where(np.diff(rows) == 1, np.diff(trace.arrival_s)[rows[1:] - 1], mean_gap_s)
    np.testing.assert_allclose(np.diff(cut.arrival_s), expected, rtol=1e-9, atol=1e-9)


def test_the_whole_is_the_trace() -> None:
    trace = make_trace()
    assert WHOLE.cut(trace) is trace
