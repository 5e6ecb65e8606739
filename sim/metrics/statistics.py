"""Mean, median, deviation and percentiles as `vllm bench serve` computes them, over samples or over counted values."""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from sim.engine.records import Floats, Ints

PART = 1 << 17
"""Longer columns are worked on in parts of this length."""
SKETCH, MARGIN = 1 << 14, 1 << 8
"""A percentile is searched this many places left and right of its estimated place, among this many samples."""
Bounds = tuple[float, float]


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
    counts = np.ones(len(samples), dtype=np.int8) if counts is None else counts
    num_samples = int(counts.sum())
    if num_samples == 0:
        return Statistics()
    mean = sum(float((some * count).sum()) for some, count in _parts(samples, counts)) / num_samples
    squares = sum(float(((some - mean) ** 2 * count).sum()) for some, count in _parts(samples, counts))
    median, p90, p95, p99 = percentiles(samples, counts, (50, 90, 95, 99))
    return Statistics(mean, median, (squares / num_samples) ** 0.5, p90, p95, p99)


def percentiles(values: Floats, counts: Ints, levels: tuple[float, ...]) -> list[float]:
    """What `np.percentile(np.repeat(values, counts), levels)` returns, without repeating anything.

    At least one count must be positive. Long columns are sorted near each percentile only, to save memory.
    """
    places = [level / 100 * (int(counts.sum()) - 1) for level in levels]
    if len(values) <= PART:
        ordered = _ordered(values, counts)
        return [ordered.at(place) for place in places]
    bounds = _bounds(values, places, counts)
    return [_sought(values, counts, place, tried) for place, tried in zip(places, bounds, strict=True)]


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


def _parts(values: Floats, counts: Ints) -> Iterator[tuple[Floats, Ints]]:
    """Parts of a column: what is computed from one is small and stays in the processor's cache."""
    for first in range(0, len(values), PART):
        yield values[first : first + PART], counts[first : first + PART]


def _bounds(values: Floats, places: list[float], counts: Ints) -> list[list[Bounds]]:
    """Bounds on the value at each place, estimated from every n-th value: likely, wide, and infinite ones."""
    stride = len(values) // SKETCH
    order = np.argsort(values[::stride])
    sketch = np.concatenate(([-np.inf], values[::stride][order], [np.inf]))
    shares = np.cumsum(counts[::stride][order])
    found = np.searchsorted(shares, np.array(places) / counts.sum() * shares[-1]).tolist()
    last, margins = len(sketch) - 1, (MARGIN, 8 * MARGIN, len(sketch))
    return [[(sketch[max(0, at - margin)], sketch[min(last, at + margin)]) for margin in margins] for at in found]


def _sought(values: Floats, counts: Ints, place: float, bounds: Iterable[Bounds]) -> float:
    """The value at a place, searched within the first of these bounds that contain it."""
    for low, high in bounds:
        num_below, near = _between(values, counts, low, high)
        if len(near.ends) and num_below <= place <= num_below + int(near.ends[-1]) - 1:
            return near.at(place - num_below)
    raise AssertionError("the last bounds leave nothing out")


def _between(values: Floats, counts: Ints, low: float, high: float) -> tuple[int, _Ordered]:
    """How many samples are below these bounds, and those within."""
    num_below, near = 0, []
    for some, count in _parts(values, counts):
        num_below += int((count * (some < low)).sum())
        is_near = (low <= some) & (some <= high)
        near.append((some[is_near], count[is_near]))
    return num_below, _ordered(*map(np.concatenate, zip(*near, strict=True)))
