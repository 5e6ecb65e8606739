"""Dynamo's planner: a step of one by latencies, above a floor by demand; of pools that prefill by TTFT and prompts, of those that decode by ITL and outputs.

After ai-dynamo/dynamo docs/design-docs/planner-design.md @320e674b and docs/components/planner/planner-guide.md @092029ef.
Deliberate differences: the latencies of an engine are the means measured over a window, where Dynamo's are regressions on its
load; demand is that of the last interval (its predictor `constant`), where ARIMA is its default.
"""

import math
from dataclasses import dataclass

from sim.cluster.autoscaling.autoscaler import Autoscaler, AutoscalerOptions, Observed, Shown
from sim.cluster.options import option


@dataclass(frozen=True)
class DynamoPlannerOptions(AutoscalerOptions):
    """Every `interval_s` one replica more if each is over a limit, one fewer if each is under `sensitivity` of both.

    Where a replica's capacity under the limits is given, demand over it is a floor, renewed every `throughput_interval_s`.
    """

    ttft_s: float = option(0.5, at_least=1e-6)
    itl_s: float = option(0.05, at_least=1e-6)
    sensitivity: float = option(0.8, at_least=0, at_most=1)
    interval_s: float = option(5.0, at_least=1)
    throughput_interval_s: float = option(180.0, at_least=1)
    prefill_tokens_per_s: float = option(0.0, at_least=0)
    decode_tokens_per_s: float = option(0.0, at_least=0)

    def autoscaler(self) -> Autoscaler:
        return DynamoPlanner(self)


class DynamoPlanner(Autoscaler):
    """One action at a time: nothing is asked while a replica starts or drains."""

    def __init__(self, options: DynamoPlannerOptions) -> None:
        self.interval_s = options.interval_s
        self.window_s = options.throughput_interval_s
        self._options = options
        self._floor = 0
        self._next_floor_s = options.throughput_interval_s

    def desired(self, observed: Observed) -> int:
        options = self._options
        if observed.now_s >= self._next_floor_s:
            self._next_floor_s = observed.now_s + options.throughput_interval_s
            self._floor = throughput_floor(observed, options)
        is_moving = observed.num_draining > 0 or len(observed.ready) < observed.num_replicas
        step = 0 if is_moving else load_step(observed, options)
        return options.clipped(max(observed.num_replicas + step, self._floor))


def load_step(observed: Observed, options: DynamoPlannerOptions) -> int:
    """+1, 0 or -1."""
    if not observed.ready:
        return 0
    ttfts, itls = zip(*map(_means, observed.ready), strict=True)
    judged = [(ttfts, options.ttft_s)] if observed.computes_prompts else []
    judged += [(itls, options.itl_s)] if observed.generates else []
    if any(all(latency > limit for latency in latencies) for latencies, limit in judged):
        return 1
    share = options.sensitivity
    is_under = all(latency < share * limit for latencies, limit in judged for latency in latencies)
    return -1 if is_under else 0


def _means(shown: Shown) -> tuple[float, float]:
    """TTFT and ITL of a replica; 0 where nothing came."""
    ttfts, tpots = shown.ttfts_s, shown.tpots_s
    return sum(ttfts) / max(1, len(ttfts)), sum(tpots) / max(1, len(tpots))


def throughput_floor(observed: Observed, options: DynamoPlannerOptions) -> int:
    """Replicas that the demand of the window needs, by prompts and by outputs."""
    demands = (
        (observed.num_prompt_tokens * observed.computes_prompts, options.prefill_tokens_per_s),
        (observed.num_arrived * observed.mean_output_tokens * observed.generates, options.decode_tokens_per_s),
    )
    return max(
        (math.ceil(tokens / options.throughput_interval_s / capacity) for tokens, capacity in demands if capacity),
        default=0,
    )
