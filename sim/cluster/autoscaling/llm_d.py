"""llm-d's autoscalers: the loop that follows latencies against their limits, and the variant autoscaler's saturation rule.

`slo`: llm-d/llm-d guides/workload-autoscaling/README.slo-aware.md @d38c9f0c; its benchmark's values are the defaults. Deliberate
differences: percentiles are exact where it reads histograms, and of latencies measured, which it falls back to, with
the waits so far of those without a first token in place of its trained prediction.
`wva`: llm-d-workload-variant-autoscaler v0.7.0, deploy/configmap-saturation-scaling.yaml, has the thresholds and when to scale
up. By how much, and that it scales down when one replica fewer would leave as much to spare, is known and was not re-read. Its
wish goes through a horizontal pod autoscaler.
"""

import math
from collections import deque
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import numpy as np

from sim.cluster.autoscaling.autoscaler import Autoscaler, Observed
from sim.cluster.autoscaling.behavior import BehaviorOptions
from sim.cluster.autoscaling.hpa import Hpa, HpaOptions
from sim.cluster.options import option


@dataclass(frozen=True)
class WishOptions(BehaviorOptions):
    """A formula gives the number of replicas itself: an AverageValue target of 1."""

    sync_s: float = option(15.0, at_least=1)
    tolerance: float = option(0.1, at_least=0, at_most=1)

    @property
    def hpa(self) -> HpaOptions:
        """The horizontal pod autoscaler that acts on the wish."""
        known = {name: getattr(self, name) for name in WishOptions.__dataclass_fields__}
        return HpaOptions(**known, target=1.0, target_type="average")


@dataclass(frozen=True)
class SloAwareOptions(WishOptions):
    """Limits on a percentile of TTFT and TPOT over `window_s`; the worse share of a limit, averaged, is held in a band."""

    ttft_s: float = option(3.0, at_least=1e-6)
    tpot_s: float = option(0.1, at_least=1e-6)
    percentile: float = option(90.0, at_least=0, at_most=100)
    window_s: float = option(60.0, at_least=1)
    clamp: float = option(2.0, at_least=0)
    smoothing_s: float = option(45.0, at_least=0)
    up: float = option(0.55, at_least=1e-6)
    down: float = option(0.40, at_least=1e-6)
    scale_up_window_s: float = option(30.0, at_least=0)
    scale_up_period_s: float = option(60.0, at_least=1)
    scale_down_window_s: float = option(180.0, at_least=0)
    scale_down_percent: float = option(0.0, at_least=0, at_most=100)
    scale_down_pods: int = option(1, at_least=0)
    scale_down_period_s: float = option(120.0, at_least=1)

    def autoscaler(self) -> Autoscaler:
        return SloAware(self)


class SloAware(Hpa):
    """`_samples` are the last shares of the limits with their times, as many as are averaged."""

    def __init__(self, options: SloAwareOptions) -> None:
        super().__init__(options.hpa)
        self.window_s = options.window_s
        self._slo = options
        self._samples: deque[tuple[float, float]] = deque()

    def total(self, observed: Observed) -> float:
        self._samples.append((observed.now_s, min(self._slo.clamp, self._share(observed))))
        while self._samples[0][0] <= observed.now_s - self._slo.smoothing_s:
            self._samples.popleft()
        saturation = sum(share for _, share in self._samples) / len(self._samples)
        return slo_wish(saturation, observed.num_replicas, len(observed.ready), self._slo)

    def _share(self, observed: Observed) -> float:
        ttfts = list(chain(observed.queued_waits_s, *(shown.ttfts_s for shown in observed.ready)))
        tpots = list(chain.from_iterable(shown.tpots_s for shown in observed.ready))
        shares = ((ttfts, self._slo.ttft_s), (tpots, self._slo.tpot_s))
        return max(
            (float(np.percentile(seen, self._slo.percentile)) / limit_s for seen, limit_s in shares if seen),
            default=0.0,
        )


def slo_wish(saturation: float, num_replicas: int, num_ready: int, options: SloAwareOptions) -> int:
    """More when the share is above the band, less those that are starting; fewer when it is below; else as many."""
    if saturation > options.up:
        credit = num_ready / num_replicas if 0 < num_ready < num_replicas else 1.0
        return num_replicas + math.ceil(num_replicas * (saturation * credit / options.up - 1))
    if saturation < options.down:
        return num_replicas - math.floor(num_replicas * (1 - saturation / options.down))
    return num_replicas


@dataclass(frozen=True)
class WvaOptions(WishOptions):
    """A replica is saturated from `kv_threshold` or `queue_threshold` on; one more where the others have too little to spare."""

    kv_threshold: float = option(0.80, at_least=0, at_most=1)
    queue_threshold: float = option(5.0, at_least=0)
    kv_spare: float = option(0.1, at_least=0)
    queue_spare: float = option(3.0, at_least=0)

    def autoscaler(self) -> Autoscaler:
        return Wva(self)


class Wva(Hpa):
    """One replica at a time, and only when all are ready."""

    FEWEST_TO_SPARE: ClassVar[int] = 2

    def __init__(self, options: WvaOptions) -> None:
        super().__init__(options.hpa)
        self._wva = options

    def total(self, observed: Observed) -> float:
        current, ready = observed.num_replicas, observed.ready
        if len(ready) < current:
            return current
        free = [
            (shown.kv_cache_usage, shown.num_waiting)
            for shown in ready
            if shown.kv_cache_usage < self._wva.kv_threshold and shown.num_waiting < self._wva.queue_threshold
        ]
        if not self._has_spare(free, len(free)):
            return current + 1
        if len(free) >= self.FEWEST_TO_SPARE and self._has_spare(free, len(free) - 1):
            return current - 1
        return current

    def _has_spare(self, free: list[tuple[float, int]], num_left: int) -> bool:
        """Whether enough would be to spare, on average, if so many served the load of these."""
        if not num_left:
            return False
        kv = self._wva.kv_threshold - sum(usage for usage, _ in free) / num_left
        queue = self._wva.queue_threshold - sum(waiting for _, waiting in free) / num_left
        return kv >= self._wva.kv_spare and queue >= self._wva.queue_spare
