"""Whether a figure of one run differs from that of another by more than noise."""

import math
from typing import Literal, NamedTuple

from sim.measure.finished import Finished, Interval

NOISE = 0.02  # differences up to here are noise, whatever their spread: runs of one server differ as much

Verdict = Literal["same", "within noise", "differs"]


class Difference(NamedTuple):
    """How far a figure is from the base's: as a share of it, None where the base is 0, and whether that is noise."""

    change: float | None
    verdict: Verdict


def difference(base: Finished, other: Finished, metric: str) -> Difference | None:
    """None where one of the two has no such figure.

    Two simulations of one load are compared pairwise, with step times as short, and as long, as they may be in both: errors of the
    model are in either. In any other pair each may be off by itself, and their intervals must not overlap.
    """
    left, right = base.figures.get(metric), other.figures.get(metric)
    if left is None or right is None:
        return None
    change = (right - left) / abs(left) if left else None
    if left == right:
        return Difference(0.0, "same")
    points = (left, (left, left)), (right, (right, right))
    are_known = metric in base.intervals and metric in other.intervals
    known = (left, base.intervals.get(metric, (left, left))), (right, other.intervals.get(metric, (right, right)))
    if base.load is not None and base.load == other.load:
        is_noise = _is_paired_noise(*(known if are_known else points))
    else:
        is_noise = _overlap(*known)
    return Difference(change, "within noise" if is_noise else "differs")


Estimate = tuple[float, Interval]


def _is_paired_noise(base: Estimate, other: Estimate) -> bool:
    """At either end of the step times, or between, nearly the same or the other way round."""
    changes = [_change(*pair) for pair in ((base[0], other[0]), *zip(base[1], other[1], strict=True))]
    return min(map(abs, changes)) <= NOISE or min(changes) < 0 < max(changes)


def _change(base: float, other: float) -> float:
    if base == other:
        return 0.0
    return (other - base) / abs(base) if base else math.copysign(math.inf, other)


def _overlap(base: Estimate, other: Estimate) -> bool:
    """Each widened by what runs of one server differ."""
    (left_low, left_high), (right_low, right_high) = map(_widened, (base, other))
    return left_low <= right_high and right_low <= left_high


def _widened(estimate: Estimate) -> Interval:
    value, (low, high) = estimate
    return min(low, value - abs(value) * NOISE / 2), max(high, value + abs(value) * NOISE / 2)
