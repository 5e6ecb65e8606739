"""KEDA: between none and one replica by its own polls, from one on through a horizontal pod autoscaler.

Defaults of `pollingInterval` and `cooldownPeriod` are KEDA's. production-stack's triggers: vllm-project/production-stack @a6c01db0,
helm/templates/scaledobject-vllm.yaml, tutorials/assets/keda-scaled-object.yaml and hpa-10.yaml.
"""

import math
from dataclasses import dataclass, replace

from sim.cluster.autoscaling.autoscaler import Autoscaler, Observed
from sim.cluster.autoscaling.hpa import Hpa, HpaOptions
from sim.cluster.options import option
from sim.specs.fleet_file import MOST_REPLICAS


@dataclass(frozen=True)
class KedaOptions(HpaOptions):
    """A pool whose `min` is 0 goes to none when the metric has not been above `activation` for `cooldown_s`."""

    target_type: str = option("average", choices=("average", "value"))
    polling_s: float = option(30.0, at_least=1)
    cooldown_s: float = option(300.0, at_least=0)
    activation: float = option(0.0, at_least=0)

    def autoscaler(self) -> Autoscaler:
        return Keda(self)


@dataclass(frozen=True)
class ProductionStackOptions(KedaOptions):
    """The trigger of its helm chart and of its KEDA sample: five waiting requests."""

    polling_s: float = option(15.0, at_least=1)
    cooldown_s: float = option(360.0, at_least=0)
    max: int = option(2, at_least=1, at_most=MOST_REPLICAS)


@dataclass(frozen=True)
class ProductionStackHpaOptions(HpaOptions):
    """Its sample of a horizontal pod autoscaler: one waiting request in all."""

    target: float = option(1.0, at_least=1e-9)
    target_type: str = option("value", choices=("value",))
    max: int = option(2, at_least=1, at_most=MOST_REPLICAS)


class Keda(Autoscaler):
    """`_active_s` is the last poll at which the metric was above `activation`."""

    def __init__(self, options: KedaOptions) -> None:
        self.interval_s = min(options.sync_s, options.polling_s)
        self._options = options
        self._hpa = Hpa(replace(options, min=max(1, options.min)))
        self._next_poll_s = self._next_sync_s = -math.inf
        self._is_active = False
        self._active_s = 0.0

    def desired(self, observed: Observed) -> int:
        now_s, current = observed.now_s, observed.num_replicas
        if now_s >= self._next_poll_s:
            self._next_poll_s = now_s + self._options.polling_s
            self._poll(now_s, self._hpa.total(observed))
        if current == 0:
            return 1 if self._is_active else 0
        if self._options.min == 0 and not self._is_active and now_s - self._active_s >= self._options.cooldown_s:
            return 0
        if now_s < self._next_sync_s:
            return current
        self._next_sync_s = now_s + self._options.sync_s
        return self._hpa.desired(observed)

    def _poll(self, now_s: float, total: float) -> None:
        self._is_active = total > self._options.activation
        if self._is_active:
            self._active_s = now_s
