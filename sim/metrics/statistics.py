"""Mean, median, deviation and percentiles as `vllm bench serve` computes them, over samples or over counted values."""

import math
from typing import NamedTuple

import numpy as np

from sim.serving.records import Floats, Ints

PART = 1 << 17
"""Longer columns are worked on in parts of this length."""
SKETCH, MARGIN = 1 << 14, 1 << 8
"""A percentile is sought so many places left and right of where it lies among so many samples."""


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
    counts = np.ones(len(samples), dtype=np.int32) if counts is None else counts
    num_samples = int(counts.sum())
    if num_samples == 0:
        return Statistics()
    parts = [slice(first, first + PART) for first in range(0, len(samples), PART)]
    mean = sum(float((samples[part] * counts[part]).sum()) for part in parts) / num_samples
    variance = sum(float(((samples[part] - mean) ** 2 * counts[part]).sum()) for part in parts) / num_samples
    median, p90, p95, p99 = percentiles(samples, counts, (50, 90, 95, 99))
    return Statistics(mean, median, variance**0.5, p90, p95, p99)


def percentiles(values: Floats, counts: Ints, levels: tuple[float, ...]) -> list[float]:
    """What `np.percentile(np.repeat(values, counts), levels)` returns, without repeating anything.

    At least one count must be positive. Long columns are sorted near each percentile only, to save memory.
    """
    places = [level / 100 * (int(counts.sum()) - 1) for level in levels]
    if len(values) <= PART:
        found = _ordered(values, counts)
        return [found.at(place) for place in places]
    return [
        _near(values, counts, place, *bounds)
        for place, bounds in zip(places, _bounds(values, places, counts), strict=True)
    ]


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


def _bounds(values: Floats, places: list[float], counts: Ints) -> list[tuple[float, float]]:
    """Between which samples these places should lie, from every n-th sample."""
    stride = len(values) // SKETCH
    order = np.argsort(values[::stride])
    sketch = np.concatenate(([-np.inf], values[::stride][order], [np.inf]))
    shares = np.cumsum(counts[::stride][order])
    found = np.searchsorted(shares, np.array(places) / counts.sum() * shares[-1]).tolist()
    return [(sketch[max(0, at - MARGIN)], sketch[min(len(sketch) - 1, at + MARGIN)]) for at in found]


def _near(values: Floats, counts: Ints, place: float, low: float, high: float) -> float:
    """What is at a place, sought between these bounds, or everywhere if it is not there."""
    is_near = (values >= low) & (values <= high)
    place_near = place - int(counts[values < low].sum())
    if not 0 <= place_near <= int(counts[is_near].sum()) - 1:
        return _ordered(values, counts).at(place)
    return _ordered(values[is_near], counts[is_near]).at(place_near)
