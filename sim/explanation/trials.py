"""Changes that might help, each simulated with all else as it is, and what came of it."""

from collections.abc import Callable, Mapping, Sequence
from math import log
from typing import NamedTuple

from sim.api import Result, simulate
from sim.errors import SimError
from sim.explanation.rules import Change
from sim.measure.differences import NOISE, Difference, difference
from sim.measure.finished import finished_of

JUDGED = {"output_throughput": 1, "request_goodput": 1, "p99_ttft_ms": -1, "p99_tpot_ms": -1, "p99_e2el_ms": -1}
"""The figures by which a change is judged, goodput where there are limits: 1 where more is better, -1 where less is."""
NEARLY_ALL = -0.999999  # of a figure that falls to 0
Progress = Callable[[int, int], None]


class Trial(NamedTuple):
    """A change and how far it moves each figure that is judged; `refused` says why it could not be simulated."""

    change: Change
    differences: Mapping[str, Difference]
    refused: str | None = None

    @property
    def gain(self) -> float:
        """The sum of the figures' logarithms, better being positive; what is within noise counts for nothing."""
        moved = {name: found.change for name, found in self.differences.items() if found.verdict == "differs"}
        return sum(JUDGED[name] * log(1 + max(change, NEARLY_ALL)) for name, change in moved.items() if change)

    @property
    def helps(self) -> bool:
        """Whether some figures are better by more than noise, and what is worse does not outweigh that."""
        return self.gain > NOISE


def try_out(result: Result, changes: Sequence[Change], progress: Progress | None = None) -> list[Trial]:
    """Each change by itself, what helps most first; `progress` is called with (done, all) changes."""
    base = finished_of("as it is", result.summary)
    trials = []
    for number, change in enumerate(changes):
        if progress:
            progress(number, len(changes))
        try:
            changed = simulate(**{**result.asked, "keep_records": False, "jobs": 1, **change.arguments})
        except SimError as error:
            trials.append(Trial(change, {}, str(error)))
            continue
        other = finished_of(change.name, changed.summary)
        found = {name: difference(base, other, name) for name in JUDGED}
        trials.append(Trial(change, {name: one for name, one in found.items() if one is not None}))
    return sorted(trials, key=lambda trial: -trial.gain)
