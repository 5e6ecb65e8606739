"""Kubernetes' horizontal pod autoscaler on a metric of the engines.

After autoscaling/v2: every 15 s desired = ceil(current x metric / target), no change within a tolerance of 10 %; replicas that
start are set aside, and count as 0 where they would otherwise make a scale-up larger. Deliberate difference: metrics are those
of this instant, where adapters show those of some seconds ago.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from sim.cluster.autoscaling.autoscaler import Autoscaler, Observed, Shown
from sim.cluster.autoscaling.behavior import Behavior, BehaviorOptions
from sim.cluster.options import option

METRICS = ("waiting", "running", "in_flight", "kv_cache_usage")
TARGET_TYPES = ("pods", "value", "average")


@dataclass(frozen=True)
class HpaOptions(BehaviorOptions):
    """`target_type` says what the target is held against: the `pods`' average, or the pool's total as `value` or `average`.

    Totals include requests that wait at the gateway.
    """

    metric: str = option("waiting", choices=METRICS)
    target: float = option(5.0, at_least=1e-9)
    target_type: str = option("pods", choices=TARGET_TYPES)
    sync_s: float = option(15.0, at_least=1)
    tolerance: float = option(0.1, at_least=0, at_most=1)

    def autoscaler(self) -> Autoscaler:
        return Hpa(self)


class Hpa(Autoscaler):
    """The formula by target type, then the behavior."""

    def __init__(self, options: HpaOptions) -> None:
        self.interval_s = options.sync_s
        self._options = options
        self._behavior = Behavior(options)

    def desired(self, observed: Observed) -> int:
        if observed.num_replicas == 0:
            return 0  # a pool of none is left alone
        return self._behavior.limit(observed.now_s, observed.num_replicas, self._recommended(observed))

    def _recommended(self, observed: Observed) -> int:
        current, num_ready = observed.num_replicas, len(observed.ready)
        if self._options.target_type == "pods":
            values = [metric_of(self._options.metric, shown) for shown in observed.ready]
            return self._by_pods(current, values)
        ratio = self.total(observed) / self._options.target
        if self._options.target_type == "average":
            return current if self._tolerates(ratio / current) else ceil(ratio)
        return current if self._tolerates(ratio) else ceil(ratio * num_ready)

    def total(self, observed: Observed) -> float:
        """The metric of the whole pool."""
        metric = self._options.metric
        values = [metric_of(metric, shown) for shown in observed.ready]
        if metric == "kv_cache_usage":
            return sum(values) / len(values) if values else 0.0
        return sum(values) + (len(observed.queued_waits_s) if metric != "running" else 0)

    def _by_pods(self, current: int, values: Sequence[float]) -> int:
        if not values:
            return current
        ratio = sum(values) / len(values) / self._options.target
        if ratio <= 1 or len(values) == current:
            return current if self._tolerates(ratio) else ceil(ratio * len(values))
        with_starting = sum(values) / current / self._options.target
        if with_starting < 1 or self._tolerates(with_starting):
            return current
        return max(current, ceil(with_starting * current))

    def _tolerates(self, ratio: float) -> bool:
        return 1 - self._options.tolerance <= ratio <= 1 + self._options.tolerance


def metric_of(metric: str, shown: Shown) -> float:
    """One of METRICS of one replica."""
    if metric == "in_flight":
        return shown.num_waiting + shown.num_running
    return {"waiting": shown.num_waiting, "running": shown.num_running, "kv_cache_usage": shown.kv_cache_usage}[metric]
