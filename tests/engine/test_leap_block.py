"""Blocks of leaps: the ends of steps follow to the bit, and so do all facts."""

import tracemalloc
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.leap_block import INTEGERS, LEAP, LeapBlock
from sim.engine.leaps import Leap, end_s
from tests.properties import engine_examples as examples

coefficient = st.floats(-1.0, 1.0)
leaps = st.builds(Leap, st.integers(1, 5), st.floats(0, 1e6), coefficient, coefficient, coefficient)


def rows_of(some: list[Leap]) -> np.ndarray[Any, Any]:
    rows = np.zeros(len(some), dtype=LEAP)
    for row, leap in zip(rows, some, strict=True):
        for name in ("num_steps", "start_s", "linear_s", "square_s", "cube_s"):
            row[name] = getattr(leap, name)
    return rows


@examples(200)
@given(some=st.lists(leaps, min_size=1))
def test_steps_end_when_the_engine_says(some: list[Leap]) -> None:
    """Also where a leap was cut to a single step, of a curve that bends."""
    block = LeapBlock.of(rows_of(some))
    ends_s = [end_s(leap, number) for leap in some for number in range(1, leap.num_steps + 1)]
    assert block.step_ends_s().tolist() == ends_s
    assert block.times_s()[1].tolist() == [end_s(leap, leap.num_steps) for leap in some]
    back = block.leaps(slice(None))
    assert [end_s(leap, number) for leap in back for number in range(1, leap.num_steps + 1)] == ends_s


@examples(100)
@given(some=st.lists(st.tuples(leaps, st.sampled_from((0.0, 0.0, 0.1))), min_size=1), few=st.sampled_from((0, 0.5, 1)))
def test_leaps_start_where_the_ones_before_end_or_later(some: list[tuple[Leap, float]], few: float) -> None:
    """However many do: their starts come back to the bit."""
    for (before, _), (leap, later_s) in pairwise(some):
        leap.start_s = end_s(before, before.num_steps) + later_s
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sim.engine.leap_block.FEW", few)
        block = LeapBlock.of(rows_of([leap for leap, _ in some]))
    assert block.times_s()[0].tolist() == [leap.start_s for leap, _ in some]


def test_the_start_of_a_leap_that_follows_another_takes_no_room() -> None:
    """A thousand single steps of different times: eight bytes each for these, and hardly any for the rest."""
    rows = np.zeros(1_000, dtype=LEAP)
    rows["num_steps"], rows["linear_s"] = 1, np.random.default_rng(0).random(1_000)
    rows["start_s"] = np.cumsum(np.append(5.0, rows["linear_s"][:-1]))
    tracemalloc.start()
    block = LeapBlock.of(rows)
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert block.times_s()[0].tolist() == rows["start_s"].tolist()
    assert kept < 13_000


@examples(50)
@given(some=st.lists(leaps, min_size=1), data=st.data())
def test_facts_come_back(some: list[Leap], data: st.DataObject) -> None:
    """Those of a leap, and of each of its steps."""
    rows = rows_of(some)
    for name in set(INTEGERS) - {"num_steps"}:
        rows[name] = data.draw(st.lists(st.integers(0, 2**31 - 1), min_size=len(some), max_size=len(some)))
    block = LeapBlock.of(rows)
    for name in INTEGERS:
        assert block.integers(name, slice(None)).tolist() == rows[name].tolist()
        assert block.of_each_step(name).tolist() == np.repeat(rows[name], rows["num_steps"]).tolist()
