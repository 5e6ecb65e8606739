"""The play of an L2 that says how much of what decodes have in common is read once."""

import pytest

from benchmarks.common_reads import READ_BYTES_PER_S, TOKEN_BYTES, Decode, Shape, kernel_s, quarters, shapes, spared_of
from sim.steptime.common_reads import FASTER_FROM_L2, IN_STEP


def test_the_share_in_step_is_what_three_of_four_shapes_reach() -> None:
    low, middle, _ = quarters((shape, *spared_of(shape)) for shape in shapes())
    assert round(low, 2) == IN_STEP
    assert middle == pytest.approx(0.84, abs=0.005)


def test_decodes_with_nothing_in_common_read_all_of_it_from_memory() -> None:
    """132 of them at a time, of one head each: as long as memory takes, and no more."""
    decodes = tuple(Decode(number, 0, 6400) for number in range(264))
    assert kernel_s(decodes, 1) == pytest.approx(264 * 6400 * TOKEN_BYTES / READ_BYTES_PER_S, rel=0.01)


def test_decodes_in_step_read_at_the_speed_of_the_l2() -> None:
    """All have everything in common and begin together."""
    decodes = (Decode(0, 6400, 0),) * 132
    alone_s = 132 * 6400 * TOKEN_BYTES / READ_BYTES_PER_S
    assert kernel_s(decodes, 1) == pytest.approx(alone_s / FASTER_FROM_L2, rel=0.02)


def test_longer_answers_put_decodes_out_of_step() -> None:
    short, long = (spared_of(Shape(4, 16, 12, 6000, own)) for own in (300, 3000))
    assert short[0] / short[1] > 0.9
    assert long[0] / long[1] < 0.5
