"""90 % intervals for what the mean and the percentiles of more requests of the same kind would be."""

import math

import numpy as np

from sim.engine.records import Floats

NORMAL_95 = 1.6449  # of a normal distribution, 90 % lie within so many standard deviations of the mean

Interval = tuple[float, float]


def mean_interval(samples: Floats) -> Interval:
    """By the standard error; of a single sample nothing is known, and the interval is the sample."""
    mean = float(samples.mean())
    error = NORMAL_95 * float(samples.std(ddof=1)) / math.sqrt(len(samples)) if len(samples) > 1 else 0.0
    return mean - error, mean + error


def percentile_interval(samples: Floats, percent: float) -> Interval:
    """Between two of the samples in order: how many lie below the true percentile is a binomial draw, taken as normal."""
    share, num_samples = percent / 100, len(samples)
    off = NORMAL_95 * math.sqrt(num_samples * share * (1 - share))
    low, high = math.floor(num_samples * share - off) - 1, math.ceil(num_samples * share + off) - 1
    ordered = np.sort(samples)
    return float(ordered[max(0, low)]), float(ordered[min(num_samples - 1, max(0, high))])
