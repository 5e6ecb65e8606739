"""The autoscaler's interface: what it sees of a pool, and the number of replicas that it asks for."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sim.cluster.options import option
from sim.engine.metrics import Metrics
from sim.specs.fleet_file import MOST_REPLICAS


class Shown(NamedTuple):
    """What a ready replica shows at an instant: its load, the share of its KV blocks in use, and the latencies of a window.

    `ttfts_s` are those of first tokens that came in the window, and the waits so far of requests without one; `tpots_s`
    those of requests that were answered in it.
    """

    num_waiting: int
    num_running: int
    kv_cache_usage: float
    ttfts_s: Sequence[float] = ()
    tpots_s: Sequence[float] = ()


class Observed(NamedTuple):
    """A pool at an instant. `num_replicas` have been asked for: the ready ones and those that start, none that drains.

    `queued_waits_s` are how long those at the gateway have waited. Of the window: requests and prompt tokens that came, and the mean output of
    those that were answered. Some pools only compute prompts, others only generate.
    """

    now_s: float
    num_replicas: int
    ready: Sequence[Shown]
    num_draining: int = 0
    queued_waits_s: Sequence[float] = ()
    num_arrived: int = 0
    num_prompt_tokens: int = 0
    mean_output_tokens: float = 0.0
    computes_prompts: bool = True
    generates: bool = True


class Autoscaler(ABC):
    """Asked every `interval_s`, from 0 s on; latencies and demand that it is shown are those of the last `window_s`."""

    interval_s: float
    window_s: float = 0.0

    def together(self, engines: Sequence[Metrics]) -> Metrics:
        """What it sees of a server with several engines, which has a series for each: as most queries do, the sum, and of usages the mean."""
        if len(engines) == 1:
            return engines[0]
        waiting, running, usages = zip(*engines, strict=True)
        return sum(waiting), sum(running), sum(usages) / len(usages)

    @abstractmethod
    def desired(self, observed: Observed) -> int:
        """How many replicas the pool should have from now on."""


@dataclass(frozen=True)
class AutoscalerOptions(ABC):
    """A kind of autoscaler with its options, checked; a pool has `min` to `max` replicas."""

    min: int = option(1, at_least=0, at_most=MOST_REPLICAS)
    max: int = option(8, at_least=1, at_most=MOST_REPLICAS)

    @abstractmethod
    def autoscaler(self) -> Autoscaler:
        """A fresh autoscaler."""

    def clipped(self, num_replicas: int) -> int:
        """The nearest number of replicas that the pool may have."""
        return max(self.min, min(self.max, num_replicas))
