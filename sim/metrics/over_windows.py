"""Counts over time, in windows that become wider as a run goes on, so that there are never many."""

from typing import Any

import numpy as np

from sim.engine.records import Floats, Ints

MOST_WINDOWS = 256
FIRST_WIDTH_S = 1 / 64


class OverWindows:
    """Counts by name, in MOST_WINDOWS windows of equal width from `start_s` on. When something happens behind the last one, all are
    joined in pairs, so that counts are the same in whatever order they come.
    """

    def __init__(self, start_s: float, names: tuple[str, ...]) -> None:
        self._start_s = start_s
        self._width_s = FIRST_WIDTH_S
        self._counts = {name: np.zeros(MOST_WINDOWS) for name in names}

    def add(self, name: str, at_s: Floats, counts: Ints | None = None) -> None:
        """Something happened at these times, none of them before the start: once, or so many times each."""
        if not len(at_s):
            return
        since_s = at_s - self._start_s
        while since_s.max() >= MOST_WINDOWS * self._width_s:
            self._width_s *= 2
            self._counts = {
                one: np.concatenate((found.reshape(-1, 2).sum(axis=1), np.zeros(MOST_WINDOWS // 2)))
                for one, found in self._counts.items()
            }
        windows = (since_s / self._width_s).astype(np.int64)
        self._counts[name] += np.bincount(windows, counts, minlength=MOST_WINDOWS)

    def by(self, name: str, at_s: float) -> float:
        """How many happened by then, taken to be spread evenly within a window."""
        ends = np.concatenate(([0.0], np.cumsum(self._counts[name])))
        return float(np.interp((at_s - self._start_s) / self._width_s, np.arange(MOST_WINDOWS + 1), ends))

    def to_json(self, names: tuple[str, ...]) -> list[dict[str, Any]]:
        """An object a window, up to the last in which anything happened."""
        columns = {name: self._counts[name].astype(int).tolist() for name in names}
        used = np.flatnonzero(np.sum([self._counts[name] for name in names], axis=0))
        return [
            {"from_s": window * self._width_s, **{name: column[window] for name, column in columns.items()}}
            for window in range(int(used[-1]) + 1 if len(used) else 0)
        ]
