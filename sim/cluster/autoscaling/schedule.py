"""So many replicas from a time of day on, whatever their load."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sim.cluster.autoscaling.autoscaler import Autoscaler, AutoscalerOptions, Observed
from sim.cluster.options import option
from sim.errors import ConfigError


@dataclass(frozen=True)
class ScheduleOptions(AutoscalerOptions):
    """`times` are pairs of seconds and replicas, in order; they repeat after `period_s`, or never where that is 0."""

    times: tuple[tuple[float, int], ...] = option((), kind=tuple)
    period_s: float = option(0.0, at_least=0)
    check_s: float = option(1.0, at_least=1e-3)

    def __post_init__(self) -> None:
        times: Any = self.times
        if not (times and all(map(_is_pair, times)) and all(a[0] < b[0] for a, b in pairwise(times))):
            raise ConfigError(
                f"autoscaler schedule: times must be pairs [seconds, replicas] in order of their seconds, got {times!r}."
            )
        if self.period_s and times[-1][0] >= self.period_s:
            raise ConfigError(
                f"autoscaler schedule: times must lie before period_s {self.period_s:g}, got {times[-1][0]:g}."
            )
        beyond = next((count for _, count in times if count != self.clipped(count)), None)
        if beyond is not None:
            raise ConfigError(
                f"autoscaler schedule: times must ask for {self.min} to {self.max} replicas (min and max), got {beyond}."
            )

    def autoscaler(self) -> Autoscaler:
        return Schedule(self)


def _is_pair(given: Any) -> bool:
    """Seconds from 0 on, and a number of replicas."""
    if not (isinstance(given, tuple | list) and len(given) == 2):
        return False
    at_s, count = given
    return isinstance(at_s, int | float) and at_s >= 0 and type(count) is int and count >= 0


class Schedule(Autoscaler):
    """Before the first time the last one holds, if they repeat; else `min`."""

    def __init__(self, options: ScheduleOptions) -> None:
        self.interval_s = options.check_s
        self._options = options

    def desired(self, observed: Observed) -> int:
        options = self._options
        now_s = observed.now_s % options.period_s if options.period_s else observed.now_s
        begun = [count for at_s, count in options.times if at_s <= now_s]
        before = options.times[-1][1] if options.period_s else options.min
        return options.clipped(begun[-1] if begun else before)
