"""What holds while steps run, told in equal intervals: its mean over time, and the lowest and the highest that it was."""

from typing import NamedTuple

import numpy as np

from sim.engine.records import Floats, Ints

ROUNDING_S = 1e-9
"""A step that begins so shortly after another's end follows it at once."""


class Band(NamedTuple):
    """An entry an interval."""

    mean: Floats
    lowest: Floats
    highest: Floats


class Grid:
    """Equal intervals between `edges_s`, and spans of time in each of which something holds; spans may overlap, and their values then add up."""

    def __init__(self, edges_s: Floats, start_s: Floats, end_s: Floats) -> None:
        self._edges_s = edges_s - edges_s[0]
        self._start_s, self._end_s = start_s - edges_s[0], end_s - edges_s[0]
        times_s = np.concatenate((self._start_s, self._end_s))
        self._order = np.argsort(times_s, kind="stable")
        self._times_s = times_s[self._order]

    def mean(self, values: Floats | Ints) -> Floats:
        """The sum of what holds, averaged over the time of each interval."""
        passed = self._integral(self._start_s, values) - self._integral(self._end_s, values)
        return np.asarray(np.diff(passed) / np.diff(self._edges_s))

    def band(self, values: Floats | Ints) -> Band:
        """That, and the lowest and the highest sum at any instant of each interval."""
        sums = np.cumsum(np.concatenate((values, -values))[self._order])
        holds = np.append(np.diff(self._times_s) > ROUNDING_S, True)
        times_s, sums = self._times_s[holds], np.concatenate(([0.0], sums[holds]))
        at_edges = sums[np.searchsorted(times_s, self._edges_s[:-1], side="right")]
        all_s = np.concatenate((self._edges_s[:-1], times_s))
        order = np.argsort(all_s, kind="stable")
        order = order[all_s[order] < self._edges_s[-1]]
        of_all = np.concatenate((at_edges, sums[1:]))[order]
        firsts = np.flatnonzero(order < len(at_edges))
        return Band(self.mean(values), np.minimum.reduceat(of_all, firsts), np.maximum.reduceat(of_all, firsts))

    def counts(self, values: Ints) -> Floats:
        """The sum of the values of the spans that begin in each interval."""
        found, _ = np.histogram(self._start_s, self._edges_s, weights=values)
        return np.asarray(found, dtype=np.float64)

    def _integral(self, since_s: Floats, values: Floats | Ints) -> Floats:
        """Up to each edge, of values that hold from these times on."""
        edges_s = self._edges_s
        interval = np.searchsorted(edges_s, since_s)
        num = len(edges_s) + 1
        heights = np.cumsum(np.bincount(interval, values, num))[:-1]
        offsets = np.cumsum(np.bincount(interval, values * since_s, num))[:-1]
        return np.asarray(heights * edges_s - offsets)
