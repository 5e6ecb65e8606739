"""llm-d's autoscalers: the loop that follows latencies against their limits, and the variant autoscaler's saturation rule.

`slo`: llm-d/llm-d guides/workload-autoscaling/README.slo-aware.md @d38c9f0c; its benchmark's values are the defaults. Percentiles
are those of Prometheus over the router's histograms, whose buckets are coarse: a TPOT between 20 and 40 ms reads 38 ms. Deliberate
difference: latencies are measured ones, which it falls back to, with the waits so far of those without a first token,
in place of its trained prediction.
`wva`: llm-d-workload-variant-autoscaler v0.7.0, deploy/configmap-saturation-scaling.yaml, has the thresholds and when to scale
up. By how much, and that it scales down when one replica fewer would leave as much to spare, is known and was not re-read. Its
wish goes through a horizontal pod autoscaler. Of a server with several engines it sees the most that any shows, as its queries take
`max by (pod)` of waiting requests and of KV cache usage.
"""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

from sim.cluster.autoscaling.autoscaler import Autoscaler, Observed
from sim.cluster.autoscaling.behavior import BehaviorOptions
from sim.cluster.autoscaling.hpa import Hpa, HpaOptions
from sim.cluster.options import option
from sim.engine.metrics import Metrics
from sim.errors import ConfigError

TTFT_BUCKETS_S = (
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60, 120, 180, 240, 300,
    360, 480, 600, 900, 1200, 1800, 2700, 3600,
)  # fmt: skip
TPOT_BUCKETS_S = (
    0.0005, 0.00205, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1, 1.5, 2, 3, 4.5, 6,
    12, 18, 24, 30, 36, 48, 60, 90, 120, 180, 270, 360,
)  # fmt: skip
"""Upper bounds of the histograms of llm-d's router (llm-d/llm-d-router, the metrics of its predicted-latency plugin, 2026)."""


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

    def __post_init__(self) -> None:
        if self.down >= self.up:
            raise ConfigError(f"autoscaler llm_d_slo: down must be less than up, got {self.down:g} and {self.up:g}.")

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
        while len(self._samples) > 1 and self._samples[0][0] <= observed.now_s - self._slo.smoothing_s:
            self._samples.popleft()
        saturation = sum(share for _, share in self._samples) / len(self._samples)
        return slo_wish(saturation, observed.num_replicas, len(observed.ready), self._slo)

    def _share(self, observed: Observed) -> float:
        ttfts = list(chain(observed.queued_waits_s, *(shown.ttfts_s for shown in observed.ready)))
        tpots = list(chain.from_iterable(shown.tpots_s for shown in observed.ready))
        shares = ((ttfts, TTFT_BUCKETS_S, self._slo.ttft_s), (tpots, TPOT_BUCKETS_S, self._slo.tpot_s))
        return max(
            (
                histogram_quantile(seen, buckets, self._slo.percentile / 100) / limit_s
                for seen, buckets, limit_s in shares
                if seen
            ),
            default=0.0,
        )


def histogram_quantile(values: Sequence[float], buckets: Sequence[float], share: float) -> float:
    """Prometheus' function of that name: values are taken as spread evenly over the bucket that they fall into."""
    counts = [0] * (len(buckets) + 1)
    for value in values:
        counts[bisect_left(buckets, value)] += 1
    rank = share * len(values)
    before = 0
    for lower, upper, count in zip((0.0, *buckets), buckets, counts, strict=False):
        if before + count >= rank and count:
            return lower + (upper - lower) * (rank - before) / count
        before += count
    return buckets[-1]


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

    def together(self, engines: Sequence[Metrics]) -> Metrics:
        """The most of any, as its queries ask (`max by (pod)`)."""
        waiting, running, usages = zip(*engines, strict=True)
        return max(waiting), max(running), max(usages)

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
