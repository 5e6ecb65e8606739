"""A sketch of values that come in parts, against statistics of all of them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.metrics.quantile_sketch import ERROR, QuantileSketch, TailShare
from sim.metrics.statistics import percentiles, statistics
from tests.properties import examples

ROUNDING = 1e-9
LATENCIES = st.floats(1e-7, 1e6) | st.just(0.0)


@examples(100)
@given(
    values=st.lists(st.tuples(LATENCIES, st.integers(0, 5)), min_size=1, max_size=40),
    size=st.integers(1, 40),
    level=st.floats(0, 100),
)
def test_percentiles_are_within_the_stated_error(values: list[tuple[float, int]], size: int, level: float) -> None:
    """Of any values in parts of any size; mean and deviation are those of all but for rounding."""
    found, counted = map(np.array, zip(*values, strict=True))
    sketch = QuantileSketch()
    for first in range(0, len(found), size):
        sketch.add(found[first : first + size], counted[first : first + size])
    exact, (percentile,) = statistics(found, counted), [None]
    assert sketch.count == counted.sum()
    for got, wanted in zip(sketch.statistics(), exact, strict=True):
        assert got == (None if wanted is None else pytest.approx(wanted, rel=ERROR * (1 + ROUNDING), abs=1e-6))
    if sketch.count:
        assert sketch.mean == pytest.approx(exact.mean, rel=ROUNDING)
        (percentile,) = percentiles(found, counted, (level,))
        assert sketch.percentile(level) == pytest.approx(percentile, rel=ERROR * (1 + ROUNDING), abs=1e-12)


def test_parts_of_any_size_give_the_same_percentiles() -> None:
    values = np.random.default_rng(0).lognormal(0, 2, 10_000)
    sketches = [QuantileSketch() for _ in range(2)]
    for sketch, size in zip(sketches, (10_000, 77), strict=True):
        for first in range(0, len(values), size):
            sketch.add(values[::-1][first : first + size] if size == 77 else values)
    one, other = (sketch.statistics()[1:] for sketch in sketches)
    assert one[0] == other[0]
    assert one[2:] == other[2:]


def test_requests_that_are_not_served_are_infinitely_late() -> None:
    sketch = QuantileSketch()
    sketch.add(np.array([1.0, 2.0]))
    assert sketch.percentile(0, 1) == pytest.approx(1.0, rel=ERROR * (1 + ROUNDING))
    assert sketch.percentile(100, 1) == math.inf
    assert QuantileSketch().percentile(50) is None


def test_the_share_of_a_part_in_the_largest_values() -> None:
    tail = TailShare()
    for whole, part in ((1.0, 1.0), (8.0, 2.0), (10.0, 1.0)):
        tail.add(np.array([whole]), np.array([part]))
    assert tail.above(8.0) == pytest.approx(3 / 18)
    assert tail.above(9.0) == pytest.approx(1 / 10)
