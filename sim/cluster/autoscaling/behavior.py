"""How fast a horizontal pod autoscaler follows its recommendations: stabilisation windows and scaling policies.

After kubernetes autoscaling/v2 `HorizontalPodAutoscalerBehavior`; defaults are its own. Of several policies the one that allows
the largest change counts (`selectPolicy: Max`).
"""

from dataclasses import dataclass
from math import ceil

from sim.cluster.autoscaling.autoscaler import AutoscalerOptions
from sim.cluster.options import option


@dataclass(frozen=True)
class BehaviorOptions(AutoscalerOptions):
    """In a period at most so many per cent or pods, whichever is more; 0 for no such policy.

    The lowest recommendation of the window counts when scaling up, and the highest when scaling down.
    """

    scale_up_window_s: float = option(0.0, at_least=0)
    scale_up_percent: float = option(100.0, at_least=0)
    scale_up_pods: int = option(4, at_least=0)
    scale_up_period_s: float = option(15.0, at_least=1)
    scale_down_window_s: float = option(300.0, at_least=0)
    scale_down_percent: float = option(100.0, at_least=0, at_most=100)
    scale_down_pods: int = option(0, at_least=0)
    scale_down_period_s: float = option(15.0, at_least=1)


class Behavior:
    """`_recommended` are recommendations and `_changes` what was done, each with its time, as long as they count."""

    def __init__(self, options: BehaviorOptions) -> None:
        self._options = options
        self._recommended: list[tuple[float, int]] = []
        self._changes: list[tuple[float, int]] = []

    def limit(self, now_s: float, current: int, recommended: int) -> int:
        """The number of replicas to have now, within the options' `min` and `max`."""
        found = self._options.clipped(self._limited(now_s, current, self._stable(now_s, current, recommended)))
        if found != current:
            self._changes.append((now_s, found - current))
        return found

    def _stable(self, now_s: float, current: int, recommended: int) -> int:
        options = self._options
        if not self._recommended:
            self._recommended.append((now_s, current))
        self._recommended.append((now_s, recommended))
        longest_s = max(options.scale_up_window_s, options.scale_down_window_s)
        self._recommended = _since(self._recommended, now_s - longest_s) or self._recommended[-1:]
        lowest = min([recommended, *_values(self._recommended, now_s - options.scale_up_window_s)])
        highest = max([recommended, *_values(self._recommended, now_s - options.scale_down_window_s)])
        return min(max(current, lowest), highest)

    def _limited(self, now_s: float, current: int, stable: int) -> int:
        options = self._options
        longest_s = max(options.scale_up_period_s, options.scale_down_period_s)
        self._changes = _since(self._changes, now_s - longest_s)
        if stable > current:
            added = [change for change in _values(self._changes, now_s - options.scale_up_period_s) if change > 0]
            start = current - sum(added)
            most = max(start + options.scale_up_pods, ceil(start * (1 + options.scale_up_percent / 100)))
            return max(current, min(stable, most))
        removed = [change for change in _values(self._changes, now_s - options.scale_down_period_s) if change < 0]
        start = current - sum(removed)
        least = min(start - options.scale_down_pods, int(start * (1 - options.scale_down_percent / 100)))
        return min(current, max(stable, least))


def _since(entries: list[tuple[float, int]], time_s: float) -> list[tuple[float, int]]:
    return [entry for entry in entries if entry[0] > time_s]


def _values(entries: list[tuple[float, int]], time_s: float) -> list[int]:
    return [value for at_s, value in entries if at_s > time_s]
