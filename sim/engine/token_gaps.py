"""Times between tokens of a request, told from the steps when somebody asks: they take more room than all else that is kept."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sim.engine.records import Floats, Gaps, Ints


@dataclass(frozen=True)
class StepGaps:
    """Of one replica: a decode's tokens are a step apart, `num_continued` of them in each step of a leap.

    But for those that had starved or been preempted in between: `late` has pairs of the step of a token and of the one
    before, `starved_steps` the steps in which one is not counted for it.
    """

    step_end_s: Floats
    num_steps: Ints
    num_continued: Ints
    starved_steps: Ints
    late: Ints

    def __call__(self) -> Gaps:
        ends_s, late = self.step_end_s, self.late
        counts = np.repeat(_narrow(self.num_continued), self.num_steps)
        np.subtract.at(counts, self.starved_steps, 1)
        gaps_s = np.zeros(len(ends_s) + len(late))  # a decode is never in the first step
        np.subtract(ends_s[1:], ends_s[:-1], out=gaps_s[1 : len(ends_s)])
        gaps_s[len(ends_s) :] = ends_s[late[:, 0]] - ends_s[late[:, 1]]
        return Gaps(gaps_s, np.concatenate((counts, np.ones(len(late), dtype=counts.dtype))) if len(late) else counts)


@dataclass(frozen=True)
class JoinedGaps:
    """Of several replicas, one after the other."""

    parts: Sequence[Callable[[], Gaps]]

    def __call__(self) -> Gaps:
        gaps_s, counts = zip(*(part() for part in self.parts), strict=True)
        return Gaps(np.concatenate(gaps_s), np.concatenate(counts))


def _narrow(counts: Ints) -> Ints:
    """The counts in the smallest signed integers that hold them all."""
    return counts.astype(np.min_scalar_type(-1 - int(counts.max(initial=0))))
