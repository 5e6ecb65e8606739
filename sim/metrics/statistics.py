"""Mean, median, deviation and percentiles as `vllm bench serve` computes them, over samples or over counted values."""

import math
from typing import NamedTuple

import numpy as np

from sim.serving.records import Floats, Ints

PART = 1 << 17
"""Longer columns are worked on in parts of this length."""
SKETCH, MARGIN = 1 << 14, 1 << 8
"""A rank is sought so many places left and right of where it lies among so many samples."""


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
    mean = sum(float(samples[part] @ counts[part]) for part in parts) / num_samples
    variance = sum(float((samples[part] - mean) ** 2 @ counts[part]) for part in parts) / num_samples
    median, p90, p95, p99 = percentiles(samples, counts, (50, 90, 95, 99))
    return Statistics(mean, median, variance**0.5, p90, p95, p99)


def percentiles(values: Floats, counts: Ints, levels: tuple[float, ...]) -> list[float]:
    """What `np.percentile(np.repeat(values, counts), levels)` returns, without repeating anything.

    Between two samples numpy's linear rule interpolates. At least one count must be positive.
    """
    places = [level / 100 * (int(counts.sum()) - 1) for level in levels]
    ranks = sorted({rank for place in places for rank in (math.floor(place), math.ceil(place))})
    at_rank = dict(zip(ranks, _at_ranks(values, counts, ranks), strict=True))
    found = []
    for place in places:
        below, above = at_rank[math.floor(place)], at_rank[math.ceil(place)]
        found.append(below + (above - below) * (place - math.floor(place)))
    return found


def _at_ranks(values: Floats, counts: Ints, ranks: list[int]) -> list[float]:
    """The samples of these ranks, from 0, in order of size. Long columns are sorted near each rank only, to save memory."""
    if len(values) <= PART:
        order = np.argsort(values)
        ends = np.cumsum(counts[order])
        return [float(values[order[np.searchsorted(ends, rank, side="right")]]) for rank in ranks]
    return [
        _near_rank(values, counts, rank, *bounds)
        for rank, bounds in zip(ranks, _bounds(values, ranks, counts), strict=True)
    ]


def _bounds(values: Floats, ranks: list[int], counts: Ints) -> list[tuple[float, float]]:
    """Between which samples those of these ranks should lie, from every n-th sample."""
    stride = len(values) // SKETCH
    order = np.argsort(values[::stride])
    sketch = np.concatenate(([-np.inf], values[::stride][order], [np.inf]))
    shares = np.cumsum(counts[::stride][order])
    places = np.searchsorted(shares, np.array(ranks) / counts.sum() * shares[-1])
    return [(sketch[max(0, at - MARGIN)], sketch[min(len(sketch) - 1, at + MARGIN)]) for at in places.tolist()]


def _near_rank(values: Floats, counts: Ints, rank: int, low: float, high: float) -> float:
    """The sample of a rank, sought between these bounds, or everywhere if it is not there."""
    is_near = (values >= low) & (values <= high)
    near, near_counts = values[is_near], counts[is_near]
    rank_near = rank - int(counts[values < low].sum())
    if not 0 <= rank_near < int(near_counts.sum()):
        near, near_counts, rank_near = values, counts, rank
    order = np.argsort(near)
    ends = np.cumsum(near_counts[order])
    return float(near[order[np.searchsorted(ends, rank_near, side="right")]])
