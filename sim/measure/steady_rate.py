"""The highest request rate at which a deployment is not at its limit, found with few replays."""

from collections.abc import Callable
from itertools import takewhile
from math import exp, log
from typing import NamedTuple

from sim.measure.confidence import Bands
from sim.measure.queueing import P99S, Figures, widest
from sim.units import MS

LOWEST = 0.18  # of the rate; the lowest share that is tried
# Where the search begins: below the rate that a deployment keeps up with by BURSTS for each e-fold of steps that its slowest
# requests wait, but not below MOSTLY of it. So for 44 replays at their limit (Azure, Mooncake and Poisson arrivals), within 0.15,
# or 0.2 where arrivals are even.
BURSTS, MOSTLY = 0.06, 0.6
COARSE = 0.2  # a share: between rates farther apart than this the middle is tried as well


class Found(NamedTuple):
    """Roughly the largest share of the rate at which no P99 is that of a queue; or the lowest share tried, if all are."""

    share: float
    is_steady: bool


class Notches:
    """Shares of a request rate, each below the one before by half the width of the step times' band.

    A replay with steps f times as long is one as modelled at f times the rate, on a clock that runs f times slower. So both
    ends of the band at a notch are replays as modelled at the notches beside it, and each replay serves two notches.
    """

    def __init__(self, bands: Bands, point: Figures, low: Figures, as_modelled: Callable[[float], Figures]) -> None:
        """`point` are the figures at the full rate, `low` those with the shortest steps; `as_modelled` replays at a share."""
        self._bands = bands
        self._as_modelled = as_modelled
        self._figures = {0: point, 1: _slower(low, exp(bands.step))}

    def share(self, notch: int) -> float:
        return exp(-self._bands.step * notch)

    def nearest(self, share: float) -> int:
        """The notch at about a share, but below the full rate."""
        return max(1, round(-log(share) / self._bands.step))

    def is_steady(self, notch: int) -> bool:
        """Whether no P99 is that of a queue."""
        low = _slower(self._at(notch + 1), self.share(1))
        high = _slower(self._at(notch - 1), self.share(-1))
        wide = widest(low, low, high, self._bands)
        return wide is None or not wide.queues

    def _at(self, notch: int) -> Figures:
        if notch not in self._figures:
            self._figures[notch] = self._as_modelled(self.share(notch))
        return self._figures[notch]


def steady_rate(notches: Notches, first_share: float) -> Found:
    """Tries a share of the rate, and higher ones while they are steady; or else lower ones until one is."""
    first = notches.nearest(max(first_share, LOWEST))
    lower = range(first + 2, max(first + 2, notches.nearest(LOWEST)) + 1, 2)
    higher = list(takewhile(notches.is_steady, range(first, 0, -2)))
    found = higher[-1] if higher else next(filter(notches.is_steady, lower), None)
    if found is None:
        return Found(notches.share(lower[-1]), is_steady=False)
    is_coarse = notches.share(2) < 1 - COARSE
    if is_coarse and found > 1 and notches.is_steady(found - 1):
        found -= 1
    return Found(notches.share(found), is_steady=True)


def likely_share(point: Figures) -> float:
    """About the share of the rate that is steady, from how long the slowest requests wait.

    The last request of a growing queue waits for the time that serving all takes beyond sending them all.
    """
    wait_ms: float = point["p99_ttft_ms"]
    step_ms: float | None = point["p99_itl_ms"]
    kept_up_with = 1 - wait_ms * MS / float(point["duration"])
    bursts = BURSTS * log(wait_ms / step_ms) if step_ms else 1.0
    return kept_up_with * max(MOSTLY, 1 - bursts)


def _slower(figures: Figures, factor: float) -> Figures:
    """The P99s on a clock that runs so many times slower."""
    return {name: figures[name] and figures[name] * factor for name in P99S if name in figures}
