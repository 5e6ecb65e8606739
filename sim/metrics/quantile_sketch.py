"""Statistics of values that come in parts and are not kept: exact mean and deviation, percentiles within a stated error.

Values are counted by size in Datadog's DDSketch (Masson et al., VLDB 2019). Of the sketches with a bound it is the one that suits latencies
and results that must not change: its error is a share of the value itself at every percentile, where KLL and REQ bound the rank, and it draws
nothing, so that parts of any size and in any order give the same percentiles, where theirs are random.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from sim.engine.records import Floats, Ints
from sim.metrics.statistics import Statistics

ERROR = 0.001
"""No percentile is further off than this share of itself. A millisecond and a minute are 5,500 counters apart."""
_LOG_GAMMA = math.log((1 + ERROR) / (1 - ERROR))
SMALLEST = 1e-12
"""Seconds, or whatever is counted, that are counted as nothing."""


class Moments(NamedTuple):
    """How many values, their mean, and the sum of squares about it."""

    number: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, values: Floats, counts: Ints) -> "Moments":
        number = int(counts.sum())
        if not number:
            return cls()
        mean = float((values * counts).sum()) / number
        return cls(number, mean, float(((values - mean) ** 2 * counts).sum()))

    def joined(self, other: "Moments") -> "Moments":
        """Of both (Chan et al., 1979)."""
        number = self.number + other.number
        if not other.number:
            return self
        apart = other.mean - self.mean
        between = apart**2 * self.number * other.number / number
        return Moments(number, self.mean + apart * other.number / number, self.squares + other.squares + between)


class QuantileSketch:
    """Values of at least 0, each with how often it occurs."""

    def __init__(self) -> None:
        from ddsketch import DDSketch

        self._moments = Moments()
        self._sketch = DDSketch(ERROR)

    @property
    def count(self) -> int:
        """How many values there were."""
        return self._moments.number

    @property
    def mean(self) -> float:
        """Of those values, at least one."""
        return self._moments.mean

    def add(self, values: Floats, counts: Ints | None = None) -> None:
        """Count more values, once each unless there are counts, of which some may be 0."""
        counts = np.ones(len(values), dtype=np.int64) if counts is None else counts.astype(np.int64)
        self._moments = self._moments.joined(Moments.of(values, counts))
        values, counts = values[counts > 0], counts[counts > 0]
        is_any = values > SMALLEST
        if not is_any.all():
            self._sketch.add(0.0, float(counts[~is_any].sum()))
        for number, (size,) in summed(bins_of(values[is_any]), counts[is_any]):
            self._sketch.add(math.exp((number - 0.5) * _LOG_GAMMA), size)

    def statistics(self) -> Statistics:
        """As `vllm bench serve` reports them."""
        if not self.count:
            return Statistics()
        median, *tail = (self.percentile(level) for level in (50, 90, 95, 99))
        return Statistics(self.mean, median, math.sqrt(self._moments.squares / self.count), *tail)

    def percentile(self, level: float, num_infinite: int = 0) -> float | None:
        """By numpy's linear rule, within ERROR; None where there is nothing. So many more values are infinite."""
        last = self.count + num_infinite - 1
        if last < 0:
            return None
        place = level / 100 * last
        below, above = self.at(math.floor(place)), self.at(math.ceil(place))
        return below if below == above else below + (above - below) * (place - math.floor(place))

    def at(self, place: int) -> float:
        """The value at a place in order of size, counted from 0; infinite behind the last."""
        if place >= self.count:
            return math.inf
        share = min(1.0, (place + 0.5) / max(1, self.count - 1))  # between two places, for a share may be rounded
        return float(self._sketch.get_quantile_value(share) or 0.0)


class TailShare:
    """Of the largest values, the share that is a part of them: both are summed by the size of the value."""

    def __init__(self) -> None:
        self._sums: dict[int, tuple[float, float]] = {}

    def add(self, values: Floats, parts: Floats) -> None:
        """More values, and the part of each."""
        for number, (whole, part) in summed(bins_of(np.maximum(values, SMALLEST)), values, parts):
            before = self._sums.get(number, (0.0, 0.0))
            self._sums[number] = (before[0] + whole, before[1] + part)

    def above(self, value: float) -> float:
        """Of values from this one on, and of those that are not told from it."""
        (least,) = bins_of(np.array([max(value, SMALLEST)]))
        wholes, parts = zip(*(sums for number, sums in self._sums.items() if number >= least), strict=True)
        return math.fsum(parts) / (math.fsum(wholes) or 1.0)


def bins_of(values: Floats) -> Ints:
    """The counter of each value, by number: its bounds are ERROR to either side of its middle."""
    return np.ceil(np.log(values) / _LOG_GAMMA).astype(np.int64)


def summed(bins: Ints, *columns: Floats | Ints) -> Iterator[tuple[int, tuple[float, ...]]]:
    """The sums of columns by bin, for each bin that has any."""
    if len(bins):
        first = int(bins.min())
        sums = [np.bincount(bins - first, column) for column in columns]
        some = np.flatnonzero(np.bincount(bins - first))
        rows = zip(*(column[some].tolist() for column in sums), strict=True)
        yield from zip((some + first).tolist(), rows, strict=True)
