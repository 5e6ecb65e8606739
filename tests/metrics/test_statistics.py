import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sim.engine.leap_block import LEAP
from sim.engine.leap_records import CHUNK
from sim.engine.narrow import NarrowRows
from sim.engine.token_gaps import StepGaps
from sim.metrics import statistics as module
from sim.metrics.statistics import Statistics, percentiles, statistics, statistics_of
from tests.single_steps import leap_records

COUNTED = st.lists(st.tuples(st.floats(0, 1e4), st.integers(1, 20)), min_size=1, max_size=30)


def test_statistics_are_those_numpy_gives_on_one_to_ten() -> None:
    """1..10: mean and median 5.5, p90 9.1 by linear interpolation, population deviation 2.8723."""
    found = statistics(np.arange(1.0, 11.0))
    assert found == pytest.approx(Statistics(5.5, 5.5, 8.25**0.5, 9.1, 9.55, 9.91))


def test_one_large_gap_among_many_moves_only_the_tail() -> None:
    """99 gaps of 10 ms and one of 510 ms: mean 15 ms, median 10 ms, p99 a hundredth of the way up the last gap."""
    found = statistics(np.array([0.010, 0.510]), np.array([99, 1]))
    assert (found.mean, found.median, found.p99) == pytest.approx((0.015, 0.010, 0.010 + 0.5 * 0.01))


def test_no_sample_gives_none_and_not_nan() -> None:
    """Nothing measured is reported as nothing."""
    assert statistics(np.array([])) == Statistics(None, None, None, None, None, None)


@given(COUNTED, st.floats(0, 100))
def test_weighted_percentiles_equal_numpy_on_the_expanded_samples(pairs: list[tuple[float, int]], level: float) -> None:
    """Counting a value n times is the same as listing it n times."""
    values, counts = np.array([value for value, _ in pairs]), np.array([count for _, count in pairs])
    expected = np.percentile(np.repeat(values, counts), level)
    assert percentiles(values, counts, (level,)) == pytest.approx([expected], rel=1e-9, abs=1e-9)


@given(COUNTED)
def test_weighted_moments_equal_numpy_on_the_expanded_samples(pairs: list[tuple[float, int]]) -> None:
    """Mean and standard deviation too."""
    values, counts = np.array([value for value, _ in pairs]), np.array([count for _, count in pairs])
    expanded = np.repeat(values, counts)
    found = statistics(values, counts)
    assert found.mean == pytest.approx(expanded.mean(), rel=1e-9, abs=1e-9)
    assert found.std == pytest.approx(expanded.std(), rel=1e-6, abs=1e-6)


def test_every_machine_gives_the_same_digits() -> None:
    """However many threads the linear algebra behind numpy would share a sum out to."""
    code = (
        "import numpy as np; from sim.metrics.statistics import statistics; "
        "print(statistics(np.random.default_rng(0).random(100_000), np.arange(100_000) % 7))"
    )
    printed = {
        subprocess.check_output([sys.executable, "-c", code], env={**os.environ, "OPENBLAS_NUM_THREADS": threads})
        for threads in ("1", "2")
    }
    assert len(printed) == 1


@given(
    samples=st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 5)), min_size=40, max_size=300),
    level=st.floats(0, 100),
)
def test_long_columns_are_sorted_near_their_ranks_only(samples: list[tuple[float, int]], level: float) -> None:
    """However narrow the search, the percentile is that of all samples repeated."""
    values, counts = np.array([value for value, _ in samples]), np.array([count for _, count in samples])
    assume(counts.any())
    with pytest.MonkeyPatch.context() as patch:
        for name, small in {"PART": 32, "STRIDE": 2, "SKETCH": 16, "MARGIN": 1}.items():
            patch.setattr(module, name, small)
        found = percentiles(values, counts, (level,))
    assert found == pytest.approx([np.percentile(np.repeat(values, counts), level)], rel=1e-12, abs=1e-9)


def test_a_percentile_is_found_where_samples_at_equal_distances_mislead() -> None:
    """Every so many-th value is large, and only such are looked at first: the median is among the others all the same."""
    values = np.where(np.arange(400_000) % module.STRIDE, np.random.default_rng(0).random(400_000), 1e6)
    found = percentiles(values, np.ones(400_000, dtype=np.int8), (1, 50, 99))
    assert found == pytest.approx(np.percentile(values, (1, 50, 99)).tolist(), rel=1e-12)


def peak_bytes(work: Callable[[], object]) -> int:
    """The most memory that was in use at once."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_long_columns_need_little_memory_beside_themselves() -> None:
    """A million gaps are not copied as a whole, however they are counted."""
    gaps_s = np.random.default_rng(0).random(1 << 20)
    counts = np.full(len(gaps_s), 100, dtype=np.int32)
    assert peak_bytes(lambda: statistics(gaps_s, counts)) < gaps_s.nbytes / 2


def test_gaps_of_many_steps_are_never_there_as_a_whole() -> None:
    """Four million steps in leaps of eight: what their statistics need is a small part of the steps' ends."""
    num_leaps = 1 << 19
    rows = np.zeros(num_leaps, dtype=LEAP)
    rows["num_steps"], rows["num_continued"] = 8, 100
    rows["linear_s"] = np.random.default_rng(0).random(num_leaps)
    rows["start_s"] = np.cumsum(8 * rows["linear_s"]) - 8 * rows["linear_s"]
    none = np.zeros(0, dtype=np.int64)
    gaps = StepGaps(leap_records(rows, NarrowRows(CHUNK)), none, np.zeros(0))
    assert peak_bytes(lambda: statistics_of(gaps)) < 8 * len(gaps) / 4
    assert statistics_of(gaps) == statistics(*gaps())
