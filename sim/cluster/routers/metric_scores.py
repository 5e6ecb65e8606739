"""llm-d's scorers that read metrics alone, as lists: what they say is the same for every request until the next scrape.

Compiled, so that a hundred replicas take a few microseconds.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from sim.engine.columns import Floats
from sim.engine.gauges import Gauges

MetricScorer = Callable[[Gauges], list[float]]
Weights = Sequence[tuple[float, MetricScorer]]


def _queue(gauges: Gauges) -> list[float]:
    """1 for the shortest, 0 for the longest."""
    num_waiting, _, _ = gauges
    least = most = num_waiting[0]
    for count in num_waiting:  # which compiled code does in a fifth of the time of `min` and `max`
        least, most = min(least, count), max(most, count)
    if least == most:
        return [1.0] * len(num_waiting)
    return [(most - count) / (most - least) for count in num_waiting]


def _kv(gauges: Gauges) -> list[float]:
    return [1.0 - usage for usage in gauges[2]]


METRIC_SCORERS: dict[str, MetricScorer] = {"queue": _queue, "kv": _kv}
"""Their scores are added up before all others."""


def metric_total(weights: Weights, gauges: Gauges) -> list[float]:
    """The weighted scores, added up in their order."""
    totals = [0.0] * len(gauges[0])
    for weight, score in weights:
        scores = score(gauges)
        totals = [so_far + weight * scores[place] for place, so_far in enumerate(totals)]
    return totals


class MetricScores:
    """Of all replicas. After `num_reads` scrapes, none at first."""

    def __init__(self, weights: Weights, num_replicas: int) -> None:
        self._weights = weights
        self.num_reads = 0
        self._column: Floats | None = None
        self._set([0.0] * num_replicas)

    def refresh(self, num_reads: int, gauges: Gauges) -> None:
        """Look at what the last of so many scrapes showed."""
        self.num_reads = num_reads
        self._set(metric_total(self._weights, gauges))

    @property
    def column(self) -> Floats:
        """The scores."""
        if self._column is None:
            self._column = np.array(self._scores)
        return self._column

    def _set(self, scores: list[float]) -> None:
        self._scores = scores
        self._column = None
        highest, best = -math.inf, list[int]()
        for place, score in enumerate(scores):
            if score > highest:
                highest, best = score, [place]
            elif score == highest:
                best.append(place)
        self._highest, self._best = highest, best

    def best_with(self, held: dict[int, float], num_blocks: int, weight: float) -> list[int]:
        """The places of the highest, where few replicas hold some of so many blocks, the share of which adds to what metrics say."""
        scores, most, places = self._scores, -math.inf, list[int]()
        for place, num_held in held.items():
            score = scores[place] + weight * (num_held / num_blocks)
            if score > most:
                most, places = score, [place]
            elif score == most:
                places.append(place)
        if most < self._highest:
            return self._best
        return sorted(places if most > self._highest else {*places, *self._best})
