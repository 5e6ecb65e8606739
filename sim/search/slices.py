"""Slices of a trace: some of its windows, moved together in time, replayed in place of the whole because that is cheaper."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.workload.trace import Trace

NUM_WINDOWS = 50
HELD_OUT_EVERY = 5  # of the windows, one in so many is held out from the search


class Slice(NamedTuple):
    """Some of the NUM_WINDOWS windows of a trace, each with equally many consecutive requests; () means the whole trace."""

    windows: tuple[int, ...] = ()

    def cut(self, trace: Trace) -> Trace:
        """The trace of these windows alone; where windows between them are left out, one mean gap takes their place."""
        if not self.windows:
            return trace
        edges = window_edges(len(trace))
        rows = np.concatenate([np.arange(edges[window], edges[window + 1]) for window in self.windows])
        return trace.rows(rows, arrival_s=_closed_up(trace, rows))


WHOLE = Slice()


class Split(NamedTuple):
    """The windows that the search may replay, and those held out to judge its result."""

    seen: tuple[int, ...]
    held_out: tuple[int, ...]


def num_windows(num_requests: int) -> int:
    return min(NUM_WINDOWS, num_requests)


def window_edges(num_requests: int) -> NDArray[np.int64]:
    """The row at which each window begins, and the number of requests."""
    return np.linspace(0, num_requests, num_windows(num_requests) + 1).astype(np.int64)


def split_windows(num_requests: int, seed: int) -> Split:
    """Hold out one window of every five consecutive ones, drawn by `seed`. A trace of one request is both seen and held out."""
    count, rng = num_windows(num_requests), np.random.default_rng([seed, 0])
    starts = range(0, count - count % HELD_OUT_EVERY, HELD_OUT_EVERY)
    held_out = tuple(start + int(rng.integers(HELD_OUT_EVERY)) for start in starts)
    if not held_out and count > 1:
        held_out = (int(rng.integers(count)),)
    return Split(tuple(window for window in range(count) if window not in held_out), held_out or tuple(range(count)))


def representative(windows: tuple[int, ...], share: float, rng: np.random.Generator) -> Slice:
    """About that share of the windows, drawn so that they spread evenly over the trace."""
    wanted = min(len(windows), max(1, round(share * len(windows))))
    edges = np.linspace(0, len(windows), wanted + 1)
    drawn = [windows[int(rng.integers(int(low), max(int(low) + 1, int(high))))] for low, high in pairwise(edges)]
    return Slice(tuple(drawn))


def _closed_up(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Arrival times in seconds of these rows: gaps as in the trace, the mean gap where rows are left out."""
    mean_gap_s = trace.duration_s / max(1, len(trace) - 1)
    gaps_s = np.diff(trace.arrival_s[rows])
    gaps_s[np.diff(rows) > 1] = mean_gap_s
    return float(trace.arrival_s[rows[0]]) + np.concatenate(([0.0], np.cumsum(gaps_s)))
