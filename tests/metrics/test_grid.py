"""Means, lowest and highest values of what holds in spans of time, against looking at every instant."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sim.metrics.grid import Grid
from tests.properties import examples

SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12), st.integers(0, 9)), min_size=1, max_size=12)
EDGES = np.arange(0.0, 61.0, 5.0)


def naive(spans: list[tuple[int, int, int]], first: float) -> list[int]:
    """The sum in each second of an interval; all times are whole."""
    seconds = range(int(first), int(first) + 5)
    return [sum(value for start, length, value in spans if start <= at < start + length) for at in seconds]


@examples(100)
@given(SPANS, st.floats(0.0, 1e4))
def test_a_grid_tells_what_every_instant_tells(spans: list[tuple[int, int, int]], begin_s: float) -> None:
    """Spans may overlap, touch, and lie beyond the last edge; the first edge may be any time."""
    start, length, value = (np.array(column, dtype=float) for column in zip(*spans, strict=True))
    found = Grid(EDGES + begin_s, start + begin_s, start + length + begin_s).band(value)
    seen = np.array([naive(spans, first) for first in EDGES[:-1]])
    np.testing.assert_allclose(found.mean, seen.mean(axis=1), atol=1e-6)
    np.testing.assert_array_equal(found.lowest, seen.min(axis=1))
    np.testing.assert_array_equal(found.highest, seen.max(axis=1))


def test_what_begins_in_an_interval_is_counted_there() -> None:
    found = Grid(np.array([1.0, 2.0, 3.0]), np.array([1.0, 1.9, 2.0]), np.array([1.5, 2.9, 2.1]))
    assert found.counts(np.array([1, 2, 4])).tolist() == [3.0, 4.0]
