"""Mean, median, deviation and percentiles as `vllm bench serve` computes them, over samples or over counted values."""

from typing import NamedTuple

import numpy as np

from sim.serving.records import Floats, Ints


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
    counts = np.ones(len(samples), dtype=np.int64) if counts is None else counts
    num_samples = int(counts.sum())
    if num_samples == 0:
        return Statistics()
    mean = float(samples @ counts) / num_samples
    variance = float((samples - mean) ** 2 @ counts) / num_samples
    median, p90, p95, p99 = percentiles(samples, counts, (50, 90, 95, 99))
    return Statistics(mean, median, variance**0.5, p90, p95, p99)


def percentiles(values: Floats, counts: Ints, levels: tuple[float, ...]) -> list[float]:
    """What `np.percentile(np.repeat(values, counts), levels)` returns, without repeating anything.

    Value i of the sorted samples fills the places from `last - count + 1` to `last`; between places numpy's linear
    rule interpolates. Counts are at least 1, and there is at least one value.
    """
    order = np.argsort(values)
    last = np.cumsum(counts[order]) - 1
    first = last - counts[order] + 1
    places = np.asarray(levels) / 100 * last[-1]
    found = np.interp(places, np.ravel((first, last), "F"), np.repeat(values[order], 2))
    return [float(value) for value in found]
