"""Parts of a trace: short stretches of it, closed up in time, that stand for the whole."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.workload.trace import Trace

NUM_WINDOWS = 50
HELD_OUT_EVERY = 5  # of the windows, one in so many is held out from the search


class Slice(NamedTuple):
    """Some of NUM_WINDOWS equally long runs of requests, in order; none named means all of the trace."""

    windows: tuple[int, ...] = ()

    def cut(self, trace: Trace) -> Trace:
        """The requests of these windows; where something is left out in between, one mean gap stands for it."""
        if not self.windows:
            return trace
        edges = window_edges(len(trace))
        rows = np.concatenate([np.arange(edges[window], edges[window + 1]) for window in self.windows])
        return trace.rows(rows, arrival_s=_closed_up(trace, rows))


WHOLE = Slice()


class Split(NamedTuple):
    """Windows that the search may look at, and those that it may not."""

    seen: tuple[int, ...]
    held_out: tuple[int, ...]


def num_windows(num_requests: int) -> int:
    return min(NUM_WINDOWS, num_requests)


def window_edges(num_requests: int) -> NDArray[np.int64]:
    """Where windows begin, and the end of the last."""
    return np.linspace(0, num_requests, num_windows(num_requests) + 1).astype(np.int64)


def split_windows(num_requests: int, seed: int) -> Split:
    """One window of every five in a row is held out; which one is drawn. A lone request is all there is to see."""
    count, rng = num_windows(num_requests), np.random.default_rng([seed, 0])
    starts = range(0, count - count % HELD_OUT_EVERY, HELD_OUT_EVERY)
    held_out = tuple(start + int(rng.integers(HELD_OUT_EVERY)) for start in starts)
    if not held_out and count > 1:
        held_out = (int(rng.integers(count)),)
    return Split(tuple(window for window in range(count) if window not in held_out), held_out or tuple(range(count)))


def representative(windows: tuple[int, ...], share: float, rng: np.random.Generator) -> Slice:
    """About that share of the windows, one drawn from each of as many equal stretches of time."""
    wanted = min(len(windows), max(1, round(share * len(windows))))
    edges = np.linspace(0, len(windows), wanted + 1)
    drawn = [windows[int(rng.integers(int(low), max(int(low) + 1, int(high))))] for low, high in pairwise(edges)]
    return Slice(tuple(drawn))


def _closed_up(trace: Trace, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Gaps as in the trace, but for those over what was left out."""
    mean_gap_s = trace.duration_s / max(1, len(trace) - 1)
    gaps_s = np.diff(trace.arrival_s[rows])
    gaps_s[np.diff(rows) > 1] = mean_gap_s
    return float(trace.arrival_s[rows[0]]) + np.concatenate(([0.0], np.cumsum(gaps_s)))
