"""Mean, median, deviation and percentiles as `vllm bench serve` computes them, over samples or over counted values."""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

import numpy as np

from sim.engine.records import Floats, Ints

PART = 1 << 17
"""Longer columns are worked on in parts of this length."""
SKETCH, MARGIN = 1 << 14, 1 << 8
"""A percentile is searched this many places left and right of its estimated place, among this many samples."""
Bounds = tuple[float, float]


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
    """The same of samples that are read in parts."""
    sums = [((some * count).sum().item(), int(count.sum())) for some, count in _parts(samples)]
    num_samples = sum(number for _, number in sums)
    if num_samples == 0:
        return Statistics()
    mean = sum(total for total, _ in sums) / num_samples
    squares = sum(float(((some - mean) ** 2 * count).sum()) for some, count in _parts(samples))
    median, p90, p95, p99 = _percentiles(samples, num_samples, (50, 90, 95, 99))
    return Statistics(mean, median, (squares / num_samples) ** 0.5, p90, p95, p99)


def percentiles(values: Floats, counts: Ints, levels: tuple[float, ...]) -> list[float]:
    """What `np.percentile(np.repeat(values, counts), levels)` returns, without repeating anything.

    At least one count must be positive.
    """
    return _percentiles(Listed(values, counts), int(counts.sum()), levels)


def _percentiles(samples: Samples, num_samples: int, levels: tuple[float, ...]) -> list[float]:
    """Long columns are sorted near each percentile only, to save memory."""
    places = [level / 100 * (num_samples - 1) for level in levels]
    if len(samples) <= PART:
        ordered = _ordered(*samples.part(0, PART))
        return [ordered.at(place) for place in places]
    bounds = _bounds(samples, num_samples, places)
    return [_sought(samples, place, tried) for place, tried in zip(places, bounds, strict=True)]


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


def _parts(samples: Samples) -> Iterator[tuple[Floats, Ints]]:
    """Parts of a column: what is computed from one is small and stays in the processor's cache."""
    for first in range(0, len(samples), PART):
        yield samples.part(first, first + PART)


def _bounds(samples: Samples, num_samples: int, places: list[float]) -> list[list[Bounds]]:
    """Bounds on the value at each place, estimated from every n-th value: likely, wide, and infinite ones."""
    values, counts = _every(samples, len(samples) // SKETCH)
    order = np.argsort(values)
    sketch = np.concatenate(([-np.inf], values[order], [np.inf]))
    shares = np.cumsum(counts[order])
    found = np.searchsorted(shares, np.array(places) / num_samples * shares[-1]).tolist()
    last, margins = len(sketch) - 1, (MARGIN, 8 * MARGIN, len(sketch))
    return [[(sketch[max(0, at - margin)], sketch[min(last, at + margin)]) for margin in margins] for at in found]


def _every(samples: Samples, stride: int) -> tuple[Floats, Ints]:
    """Every n-th value, and its count."""
    firsts = (-first % stride for first in range(0, len(samples), PART))
    picked = [
        (some[at::stride].copy(), count[at::stride].copy())  # lest the whole parts stay
        for at, (some, count) in zip(firsts, _parts(samples), strict=True)
    ]
    values, counts = map(np.concatenate, zip(*picked, strict=True))
    return values, counts


def _sought(samples: Samples, place: float, bounds: Iterable[Bounds]) -> float:
    """The value at a place, searched within the first of these bounds that contain it."""
    for low, high in bounds:
        num_below, near = _between(samples, low, high)
        if len(near.ends) and num_below <= place <= num_below + int(near.ends[-1]) - 1:
            return near.at(place - num_below)
    raise AssertionError("the last bounds leave nothing out")


def _between(samples: Samples, low: float, high: float) -> tuple[int, _Ordered]:
    """How many samples are below these bounds, and those within."""
    num_below, near = 0, []
    for some, count in _parts(samples):
        num_below += int((count * (some < low)).sum())
        is_near = (low <= some) & (some <= high)
        near.append((some[is_near], count[is_near]))
    return num_below, _ordered(*map(np.concatenate, zip(*near, strict=True)))
