"""Times between the tokens of requests, computed from the steps when asked for: stored, they would take most of the memory."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sim.engine.records import Floats, GapColumn, Gaps, Ints

LEAPS_AT_ONCE = 256


class StepGaps:
    """The gaps of one replica: an entry for each step, and then one for each late token.

    Tokens of a decode are one step apart. `step_end_s` are the ends of all steps, `num_steps` and `num_continued` have an
    entry a leap: its steps, and the decodes of each that had a token in the step before as well. Exceptions follow from
    the other two: `late` has rows (step of a token, step of the token before it) where these are further apart, because
    the request starved or was preempted; `starved_steps` has, in order, the step of each token that `num_continued` counts
    wrongly.
    """

    def __init__(
        self, step_end_s: Floats, num_steps: Ints, num_continued: Ints, starved_steps: Ints, late: Ints
    ) -> None:
        self._step_end_s = step_end_s
        self._num_steps = num_steps
        self._num_continued = num_continued
        self._starved_steps = starved_steps
        self._late = late
        self._first_steps = _first_steps(num_steps)

    def __len__(self) -> int:
        return len(self._step_end_s) + len(self._late)

    def __call__(self) -> Gaps:
        return self.part(0, len(self))

    def part(self, first: int, end: int) -> Gaps:
        """Those of some entries."""
        ends_s, num_steps = self._step_end_s, len(self._step_end_s)
        late = self._late[max(0, first - num_steps) : max(0, end - num_steps)]
        counts = np.zeros(0, dtype=np.int8) if first >= num_steps else self._counts(first, min(end, num_steps))
        end_before_s = ends_s[max(0, first - 1) : max(1, first)]  # of the first step its own: it has no decodes
        steps_s = np.diff(ends_s[first:end], prepend=end_before_s)
        late_s = ends_s[late[:, 0]] - ends_s[late[:, 1]]
        return Gaps(np.concatenate((steps_s, late_s)), np.concatenate((counts, np.ones(len(late), dtype=counts.dtype))))

    def _counts(self, first: int, end: int) -> Ints:
        """How many decodes continued in each of some steps."""
        block = int(np.searchsorted(self._first_steps, first, side="right")) - 1
        last_block = int(np.searchsorted(self._first_steps, end))
        leaps = slice(block * LEAPS_AT_ONCE, last_block * LEAPS_AT_ONCE)
        begin = int(self._first_steps[block])
        counts = np.repeat(_narrow(self._num_continued[leaps]), self._num_steps[leaps])[first - begin : end - begin]
        starved_from, starved_to = np.searchsorted(self._starved_steps, (first, end)).tolist()
        np.subtract.at(counts, self._starved_steps[starved_from:starved_to] - first, 1)
        return counts


@dataclass(frozen=True)
class JoinedGaps:
    """The gaps of several replicas, one after the other."""

    parts: Sequence[GapColumn]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __call__(self) -> Gaps:
        return self.part(0, len(self))

    def part(self, first: int, end: int) -> Gaps:
        """Those of some entries, which may be of several replicas."""
        found = []
        for column in self.parts:
            if first < len(column) and end > 0:
                found.append(column.part(max(0, first), min(end, len(column))))
            first, end = first - len(column), end - len(column)
        if not found:
            return Gaps(np.zeros(0), np.zeros(0, dtype=np.int8))
        gaps_s, counts = zip(*found, strict=True)
        return Gaps(np.concatenate(gaps_s), np.concatenate(counts))


def _first_steps(num_steps: Ints) -> Ints:
    """The number of the first step of every LEAPS_AT_ONCE-th leap, and of the step after the last."""
    firsts = np.arange(0, len(num_steps), LEAPS_AT_ONCE)
    return np.asarray(np.cumsum(np.append(0, np.add.reduceat(num_steps, firsts, dtype=np.int64))))


def _narrow(counts: Ints) -> Ints:
    """The counts as the smallest signed integers that hold all of them."""
    return counts.astype(np.min_scalar_type(-1 - int(counts.max(initial=0))))
