"""Times between the tokens of requests, computed from the steps when asked for: stored, they would take most of the memory."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sim.engine.leap_records import LeapRecords
from sim.engine.records import Floats, GapColumn, Gaps, Ints


class StepGaps:
    """The gaps of one replica: an entry for each step, and then one for each late token.

    Tokens of a decode are one step apart, or as many as `num_back` of the `leaps` says. `num_continued` are the decodes of each that had a
    token so many steps before. Exceptions follow from the other two: `late_s` are the times between tokens that are further apart,
    because the request starved or was preempted; `starved_steps` has, in order, the step of each token that `num_continued` counts
    wrongly. `before_s` is when the step before the first one ended, None where that is the first of all.
    """

    def __init__(self, leaps: LeapRecords, starved_steps: Ints, late_s: Floats, before_s: float | None = None) -> None:
        self._leaps = leaps
        self._num_steps = leaps.num_passes
        self._starved_steps = starved_steps
        self._late_s = late_s
        self._before_s = before_s

    def __reduce__(self) -> tuple[object, ...]:
        return StepGaps, (self._leaps, self._starved_steps, self._late_s, self._before_s)

    def __len__(self) -> int:
        return self._num_steps + len(self._late_s)

    def __call__(self) -> Gaps:
        return self.part(0, len(self))

    def part(self, first: int, end: int) -> Gaps:
        """Those of some entries."""
        late_s = self._late_s[max(0, first - self._num_steps) : max(0, end - self._num_steps)]
        steps_s, counts = self._of_steps(first, min(end, self._num_steps))
        return Gaps(
            np.concatenate((steps_s, late_s)), np.concatenate((counts, np.ones(len(late_s), dtype=counts.dtype)))
        )

    def _of_steps(self, first: int, end: int) -> tuple[Floats, Ints]:
        """The time since the step before each, as far as decodes count in steps, and how many decodes continued."""
        if first >= end:
            return np.zeros(0), np.zeros(0, dtype=np.int8)
        num_continued = _narrow(self._leaps.of_each_step("num_continued", first, end))
        starved_from, starved_to = np.searchsorted(self._starved_steps, (first, end)).tolist()
        np.subtract.at(num_continued, self._starved_steps[starved_from:starved_to] - first, 1)
        return self._since_s(first, end), num_continued

    def _since_s(self, first: int, end: int) -> Floats:
        """The time since the step that each step's continued decodes had their last token of."""
        num_back = self._leaps.num_back_of_each_step(first, end)
        if num_back is None:
            ends_s = self._leaps.step_ends_s(max(0, first - 1), end)
            return np.diff(ends_s, prepend=self._first_before_s(ends_s) if first == 0 else ends_s[:0])
        begin = max(0, first - int(num_back.max()))
        ends_s = self._leaps.step_ends_s(begin, end)
        numbers = np.arange(first, end)
        return np.asarray(ends_s[first - begin :] - ends_s[np.maximum(numbers - num_back, 0) - begin])

    def _first_before_s(self, ends_s: Floats) -> Floats:
        return ends_s[:1] if self._before_s is None else np.array([self._before_s])


def late_s(leaps: LeapRecords, late: Ints) -> Floats:
    """The gaps of tokens, from rows (step of a token, step of the token before it)."""
    return np.asarray(leaps.ends_of(late[:, 0]) - leaps.ends_of(late[:, 1]))


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


def _narrow(counts: Ints) -> Ints:
    """The counts as the smallest signed integers that hold all of them."""
    return counts.astype(np.min_scalar_type(-1 - int(counts.max(initial=0))))
