"""Times that come again and again."""

import math

from sim.engine.ticks import Ticks


def test_each_multiple_is_told_of_once_and_those_that_nobody_asked_for_never() -> None:
    """By 0.25 s the first of 0.1 s each has long passed; the last one is that of 0.2 s."""
    ticks = Ticks(0.1)
    assert [(ticks.passed(now_s), ticks.last_s) for now_s in (0.0, 0.05, 0.25, 0.29, 0.5)] == [
        (True, 0.0),
        (False, 0.0),
        (True, 0.2),
        (False, 0.2),
        (True, 0.5),
    ]


def test_the_next_one_is_the_first_that_is_told_of_again() -> None:
    """To the last bit, of an interval that is no sum of powers of two."""
    ticks = Ticks(0.1)
    for now_s in (0.0, 0.25, 0.3, 7.77, 1234.5):
        ticks.passed(now_s)
        next_s = ticks.next_s
        assert next_s > now_s
        assert not Ticks(0.1, ticks.last_s).passed(math.nextafter(next_s, 0.0))
        assert Ticks(0.1, ticks.last_s).passed(next_s)


def test_it_may_begin_after_the_first() -> None:
    assert not Ticks(120.0, last_s=0.0).passed(119.0)
