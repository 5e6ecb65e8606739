"""One request rate, tried: does the deployment keep its limits at it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from sim.deployment import Deployment
from sim.engine.records import RequestRecords
from sim.errors import ConfigError, DoesNotFitError
from sim.metrics.overload import is_backlog
from sim.metrics.slo import Slo, is_over
from sim.search.evaluate import Scenario
from sim.search.space import REPLICAS
from sim.steptime.perturbed import AS_MODELLED, Perturbation
from sim.workload.rates import scale_rate
from sim.workload.tile import tile
from sim.workload.trace import Trace

LEAST_DURATION_S = 60.0  # a shorter replay ends before queues have shown themselves
MOST_REQUESTS = 20_000
PREFIXES = (0.125, 0.5)  # of the trace, looked at first


class Probe(NamedTuple):
    """What came of a rate. Where `keeps` is false, `metrics` may be empty: the replay was cut off as hopeless."""

    request_rate: float
    replicas: int
    keeps: bool
    metrics: Mapping[str, Any]


@dataclass(frozen=True)
class RateProber:
    """A deployment to be probed. Raises DoesNotFitError where it cannot serve the trace at any rate."""

    scenario: Scenario

    def __post_init__(self) -> None:
        if (reason := self.scenario.why_not(self.deployment)) is not None:
            raise DoesNotFitError(f"{self.scenario.model.name} on {self.scenario.gpu.name}: {reason}")
        if self.scenario.trace.duration_s <= 0:
            raise ConfigError("a trace whose requests all come at once has no rate to scale; use one with gaps.")

    @cached_property
    def deployment(self) -> Deployment:
        return self.scenario.deploy({})

    @cached_property
    def trace_rate(self) -> float:
        """Requests a second as the trace has them."""
        rate = self.scenario.trace.request_rate
        assert rate is not None, "a trace without gaps was refused"
        return rate

    def probe(self, rate: float, replicas: int = 1) -> Probe:
        """Replay at that rate; beginnings of the trace that already break a limit for good end it early."""
        trace = self.at_rate(rate)
        for share in PREFIXES:
            begun = trace.first(max(1, math.ceil(share * len(trace))))
            requests = self._replay(begun, replicas).merged.requests
            if any(_is_lost(slo, requests, len(trace)) for slo in self.scenario.target.limits):
                return Probe(rate, replicas, keeps=False, metrics={})
        return self.measure(rate, replicas)

    def measure(self, rate: float, replicas: int = 1, off_by: Perturbation = AS_MODELLED) -> Probe:
        """Replay all of the trace at that rate, with step times that are off by so much, whatever comes of it."""
        trace = self.at_rate(rate)
        records = self._replay(trace, replicas, off_by)
        metrics = self.scenario.metrics({REPLICAS: replicas}, self.deployment, records)
        keeps = self.scenario.target.violation(metrics) == 0 and not self._is_overloaded(trace, records.merged.requests)
        return Probe(rate, replicas, keeps, metrics)

    def at_rate(self, rate: float) -> Trace:
        """The trace at that rate, repeated until it lasts long enough."""
        trace = self.scenario.trace
        copies = min(math.ceil(LEAST_DURATION_S * rate / len(trace)), MOST_REQUESTS // len(trace))
        return scale_rate(tile(trace, max(1, copies)), rate / self.trace_rate)

    def _is_overloaded(self, trace: Trace, requests: RequestRecords) -> bool:
        """Whether a backlog stood when the last request arrived, or was to be sent by clients who hold back too many."""
        last_s = (requests if self.scenario.clients.max_concurrency is None else trace).arrival_s[-1]
        begun_s = requests.first_scheduled_s[np.isfinite(requests.first_scheduled_s)]
        return is_backlog(int(np.count_nonzero(begun_s > last_s)), len(requests))

    def _replay(self, trace: Trace, replicas: int, off_by: Perturbation = AS_MODELLED) -> Any:
        return self.scenario.replay(trace, {REPLICAS: replicas}, self.deployment, off_by)


def _is_lost(slo: Slo, requests: RequestRecords, num_requests: int) -> bool:
    """Whether so many requests are over the limit that those still to come cannot make up for it."""
    if slo.latency == "itl":
        return False
    num_over = int(np.count_nonzero(is_over(slo, requests)))
    return num_over > (1 - slo.percentile / 100) * num_requests + 1
