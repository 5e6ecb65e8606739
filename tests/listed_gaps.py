"""Gaps between tokens that are there as lists, in the form in which the engine makes its own when asked."""

from collections.abc import Mapping

import numpy as np

from sim.engine.records import Gaps


class ListedGaps:
    """How often each gap occurred, by its seconds."""

    def __init__(self, counts: Mapping[float, int]) -> None:
        self._whole = Gaps(np.array(list(counts), dtype=float), np.array(list(counts.values()), dtype=np.int64))

    def __len__(self) -> int:
        return len(self._whole.times_s)

    def part(self, first: int, end: int) -> Gaps:
        return Gaps(self._whole.times_s[first:end], self._whole.counts[first:end])

    def __call__(self) -> Gaps:
        return self._whole
