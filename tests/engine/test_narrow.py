"""Integers in few bytes come back as they were."""

import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.narrow import ROWS_AT_ONCE, Narrow, NarrowRows, RowLog, Shared
from tests.properties import engine_examples as examples

PAIR = np.dtype([("one", "i8"), ("other", "i4")])
numbers = st.integers(-(2**31), 2**31 - 1)


@examples(100)
@given(values=st.lists(numbers, min_size=1), low=st.sampled_from((0, 2**40, -(2**40))))
def test_integers_come_back(values: list[int], low: int) -> None:
    column = np.array(values) + low
    assert Narrow(column).read(slice(None), np.int64).tolist() == column.tolist()
    assert Narrow(column).read(np.array([0, -1]), np.int64).tolist() == column[[0, -1]].tolist()


@examples(50)
@given(values=st.lists(numbers, min_size=1), data=st.data())
def test_integers_that_rows_share_come_back(values: list[int], data: st.DataObject) -> None:
    """Also from another process."""
    places = np.array(data.draw(st.lists(st.integers(0, len(values) - 1), min_size=1)), dtype=np.uint16)
    expected = np.array(values)[places].tolist()
    shared = pickle.loads(pickle.dumps(Shared(Narrow(np.array(values)), places)))  # noqa: S301 - as another process sends them
    assert shared.read(slice(None), np.int64).tolist() == expected
    assert shared.read(np.array([0, -1]), np.int64).tolist() == [expected[0], expected[-1]]


@examples(100)
@given(
    rows=st.lists(st.tuples(numbers, numbers)), cut=st.integers(0, 20), first=st.integers(0, 20), end=st.integers(0, 20)
)
def test_any_part_of_the_rows_can_be_read(rows: list[tuple[int, int]], cut: int, first: int, end: int) -> None:
    """Also of two columns one after the other."""
    column = np.array(rows, dtype=PAIR)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sim.engine.narrow.ROWS_AT_ONCE", 3)
        narrow = NarrowRows.joined([NarrowRows.of(column[:cut]), NarrowRows.of(column[cut:])])
    assert len(narrow) == len(rows)
    assert narrow.part(first, end).tolist() == column[first:end].tolist()
    assert [row for part in narrow.parts(2) for row in part.tolist()] == column.tolist()


def test_small_numbers_take_few_bytes() -> None:
    """A column that rises by 3 needs two bytes a row and one of equal numbers none, of the twelve that a row has packed."""
    log, num_rows = RowLog(PAIR), 25 * ROWS_AT_ONCE
    tracemalloc.start()
    for number in range(num_rows):
        log.add(np.array((3 * number, 7), dtype=PAIR).tobytes())
    rows = log.rows()
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert rows.part(num_rows - 1, num_rows).tolist() == [(3 * num_rows - 3, 7)]
    assert kept < 2.5 * num_rows
