"""Mean, median, deviation and percentiles as `vllm bench serve` computes them, over samples or over counted values."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from sim.engine.records import Floats, Ints

PART = 1 << 17
"""Longer columns are worked on in parts of this length."""
STRIDE, SKETCH = 64, 1 << 17
"""Where a percentile lies is estimated from every n-th value, n being STRIDE or, to take no more than SKETCH of them, larger."""
MARGIN = 4.0
"""How far from there it is searched, in standard deviations of an estimate from as many values drawn at random."""
Bounds = tuple[float, float]
Part = tuple[Floats, Ints]


class Samples(Protocol):
    """Values and how often each occurs, read in parts: they need not exist as a whole."""

    def __len__(self) -> int:
        """The number of values."""
        ...

    def part(self, first: int, end: int) -> tuple[Floats, Ints]:
        """Values `first` to before `end`, and their counts."""
        ...


class Listed:
    """Values in a column, each occurring `counts` times, once when None."""

    def __init__(self, values: Floats, counts: Ints | None = None) -> None:
        self._values = values
        self._counts = np.ones(len(values), dtype=np.int8) if counts is None else counts

    def __len__(self) -> int:
        return len(self._values)

    def part(self, first: int, end: int) -> tuple[Floats, Ints]:
        return self._values[first:end], self._counts[first:end]


class Statistics(NamedTuple):
    """The figures reported for one latency; all None when there was no sample."""

    mean: float | None = None
    median: float | None = None
    std: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None


def statistics(samples: Floats, counts: Ints | None = None) -> Statistics:
    """Statistics of `samples`, each occurring `counts` times (once when None); std is that of the population."""
    return statistics_of(Listed(samples, counts))


def statistics_of(samples: Samples) -> Statistics:
    """The same of samples that are read in parts, twice unless a percentile is not where it was likely."""
    sums, sketch = [], _Sketch(len(samples))
    for some, count in parts_of(samples):
        sums.append(((some * count).sum().item(), int(count.sum())))
        sketch.draw(some, count)
    num_samples = sum(number for _, number in sums)
    if num_samples == 0:
        return Statistics()
    mean, squares = sum(total for total, _ in sums) / num_samples, []
    search = _Search(sketch, num_samples, (50, 90, 95, 99))
    for some, count in parts_of(samples):
        squares.append(float(((some - mean) ** 2 * count).sum()))
        search.look(some, count)
    median, p90, p95, p99 = search.values(samples)
    return Statistics(mean, median, (sum(squares) / num_samples) ** 0.5, p90, p95, p99)


def percentiles(values: Floats, counts: Ints, levels: tuple[float, ...]) -> list[float]:
    """What `np.percentile(np.repeat(values, counts), levels)` returns, without repeating anything.

    At least one count must be positive.
    """
    return percentiles_of(Listed(values, counts), levels)


def percentiles_of(samples: Samples, levels: tuple[float, ...]) -> list[float]:
    """The same of samples that are read in parts; nothing where there are none."""
    num_samples, sketch = 0, _Sketch(len(samples))
    for some, count in parts_of(samples):
        num_samples += int(count.sum())
        sketch.draw(some, count)
    if num_samples == 0:
        return []
    search = _Search(sketch, num_samples, levels)
    for some, count in parts_of(samples):
        search.look(some, count)
    return search.values(samples)


class _Ordered(NamedTuple):
    """Values by size, with how many samples there are up to each."""

    values: Floats
    ends: Ints

    def at(self, place: float) -> float:
        """At a place between two samples, counted from 0, numpy's linear rule interpolates."""
        rank = math.floor(place)
        below, above = self.values[np.searchsorted(self.ends, (rank, math.ceil(place)), side="right")].tolist()
        return float(below + (above - below) * (place - rank))


def _ordered(values: Floats, counts: Ints) -> _Ordered:
    order = np.argsort(values)
    return _Ordered(values[order], np.cumsum(counts[order]))


def parts_of(samples: Samples) -> Iterator[Part]:
    """Parts of a column: what is computed from one is small and stays in the processor's cache."""
    for first in range(0, len(samples), PART):
        yield samples.part(first, first + PART)


class _Sketch:
    """Every n-th value of a column, and its count."""

    def __init__(self, num_values: int) -> None:
        self._stride = max(STRIDE, num_values // SKETCH)
        self._num_seen = 0
        self._drawn: list[Part] = []

    def draw(self, some: Floats, count: Ints) -> None:
        """From the values that come next."""
        at = -self._num_seen % self._stride
        self._num_seen += len(some)
        self._drawn.append((some[at :: self._stride].copy(), count[at :: self._stride].astype(float)))

    def bounds(self, levels: Sequence[float], margin: float) -> list[Bounds]:
        """Of the values at these levels in percent, so many standard deviations apart."""
        values, counts = map(np.concatenate, zip(*self._drawn, strict=True))
        order, shares = np.argsort(values), np.array(levels) / 100
        values, ends = np.concatenate(([-np.inf], values[order], [np.inf])), np.cumsum(counts[order])
        off = margin * np.sqrt(shares * (1 - shares) * (counts**2).sum())
        low = np.searchsorted(ends, shares * ends[-1] - off)
        high = np.searchsorted(ends, shares * ends[-1] + off, side="right")
        return list(zip(values[low].tolist(), values[np.minimum(high + 2, len(values) - 1)].tolist(), strict=True))


class _Search:
    """Searches the values at some levels, in percent and rising, near where a sketch has them."""

    def __init__(self, sketch: _Sketch, num_samples: int, levels: Sequence[float]) -> None:
        self._sketch = sketch
        self._levels = levels
        self._places = [level / 100 * (num_samples - 1) for level in levels]
        self._near = [_Near(*bounds) for bounds in sketch.bounds(levels, MARGIN)]

    def look(self, some: Floats, count: Ints) -> None:
        """Look among the values that come next; those below one value's bounds are so for all higher ones."""
        num_below = 0
        for near in self._near:
            is_above = some >= near.low
            num_before, some, count = int(count.sum()), some[is_above], count[is_above]
            num_below += num_before - int(count.sum())
            near.look(num_below, some, count)

    def values(self, samples: Samples) -> list[float]:
        """Those found, and from the samples those that were not where they were likely."""
        found = [near.at(place) for near, place in zip(self._near, self._places, strict=True)]
        levels = zip(found, self._levels, self._places, strict=True)
        return [self._again(samples, level, place) if value is None else value for value, level, place in levels]

    def _again(self, samples: Samples, level: float, place: float) -> float:
        """Search one value by itself, within wider bounds."""
        for bounds in (*self._sketch.bounds([level], 8 * MARGIN), (-np.inf, np.inf)):
            self._near = [near := _Near(*bounds)]
            for some, count in parts_of(samples):
                self.look(some, count)
            if (value := near.at(place)) is not None:
                return value
        raise AssertionError("the last bounds leave nothing out")


class _Near:
    """The samples between two bounds, and how many are below."""

    def __init__(self, low: float, high: float) -> None:
        self.low = low
        self._high = high
        self._num_below = 0
        self._within: list[Part] = []

    def look(self, num_below: int, some: Floats, count: Ints) -> None:
        """Look among the values that come next, of which so many samples are below."""
        self._num_below += num_below
        is_within = some <= self._high
        self._within.append((some[is_within], count[is_within]))

    def at(self, place: float) -> float | None:
        """The value at a place among all samples, counted from 0; None where it is not within the bounds."""
        near = _ordered(*map(np.concatenate, zip(*self._within, strict=True)))
        place -= self._num_below
        return near.at(place) if len(near.ends) and 0 <= place <= int(near.ends[-1]) - 1 else None
