"""Times between the tokens of requests, computed from the steps when asked for: stored, they would take most of the memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sim.engine.records import Floats, Gaps, Ints


@dataclass(frozen=True)
class StepGaps:
    """The gaps of one replica; a call returns them.

    Tokens of a decode are one step apart. `step_end_s` are the ends of all steps, `num_steps` and `num_continued` have an
    entry a leap: its steps, and the decodes of each that had a token in the step before as well. Exceptions follow from
    the other two: `late` has rows (step of a token, step of the token before it) where these are further apart, because
    the request starved or was preempted; `starved_steps` an entry for each token that `num_continued` counts wrongly.
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
        gaps_s = np.zeros(len(ends_s) + len(late))  # the first step has no decodes
        np.subtract(ends_s[1:], ends_s[:-1], out=gaps_s[1 : len(ends_s)])
        gaps_s[len(ends_s) :] = ends_s[late[:, 0]] - ends_s[late[:, 1]]
        return Gaps(gaps_s, np.concatenate((counts, np.ones(len(late), dtype=counts.dtype))) if len(late) else counts)


@dataclass(frozen=True)
class JoinedGaps:
    """The gaps of several replicas, one after the other."""

    parts: Sequence[Callable[[], Gaps]]

    def __call__(self) -> Gaps:
        gaps_s, counts = zip(*(part() for part in self.parts), strict=True)
        return Gaps(np.concatenate(gaps_s), np.concatenate(counts))


def _narrow(counts: Ints) -> Ints:
    """The counts as the smallest signed integers that hold all of them."""
    return counts.astype(np.min_scalar_type(-1 - int(counts.max(initial=0))))
