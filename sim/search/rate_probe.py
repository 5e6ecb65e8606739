"""Replays a trace at one request rate, to see whether a fleet keeps its limits at it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from sim.cluster.records import ClusterRecords
from sim.engine.records import RequestRecords
from sim.errors import ConfigError, DoesNotFitError
from sim.fleet import DeployedFleet
from sim.metrics.overload import is_backlog
from sim.metrics.slo import is_over
from sim.search.evaluate import Scenario
from sim.specs.slo import Slo
from sim.steptime.perturbed import AS_MODELLED, Perturbation
from sim.workload.rates import scale_rate
from sim.workload.tile import tile
from sim.workload.trace import Trace

LEAST_DURATION_S = 60.0  # in a shorter replay queues have no time to build up
LEAST_CHANGING_S = (
    600.0  # nor have policies to scale up and down again: twice the 300 s that Kubernetes' HPA looks back
)
MOST_REQUESTS = 20_000
PREFIXES = (0.125, 0.5)  # of the trace, replayed first


class Probe(NamedTuple):
    """The result at a rate in requests/s. If `keeps` is false, `metrics` may be empty: a part of the trace sufficed to see it."""

    request_rate: float
    replicas: int
    keeps: bool
    metrics: Mapping[str, Any]


@dataclass(frozen=True)
class RateProber:
    """Probes one fleet, with any number of replicas in the pool of the number `pool`.

    Raises DoesNotFitError if it cannot serve the trace at any rate, ConfigError for a trace without gaps.
    """

    scenario: Scenario
    pool: int = 0

    def __post_init__(self) -> None:
        if (reason := self.scenario.cannot_serve(self.fleet)) is not None:
            raise DoesNotFitError(f"{self.scenario.model.name} on {self.scenario.gpu.name}: {reason}")
        if self.scenario.trace.duration_s <= 0:
            raise ConfigError("a trace whose requests all come at once has no rate to scale; use one with gaps.")
        if self.scenario.trace.max_concurrency is not None and not self.scenario.clients.open_loop:
            raise ConfigError(
                "a trace with limits of requests in flight (`max_concurrency`) is sent as fast as answers come, at no rate that could be "
                "scaled; use one without them, or `open_loop`."
            )

    @cached_property
    def fleet(self) -> DeployedFleet:
        """As it was asked for."""
        return self.scenario.deploy_fleet({})

    def sized(self, replicas: int) -> DeployedFleet:
        return self.fleet.sized(self.pool, replicas)

    @cached_property
    def trace_rate(self) -> float:
        """The trace's own rate in requests/s."""
        rate = self.scenario.trace.request_rate
        assert rate is not None, "a trace without gaps was refused"
        return rate

    def probe(self, rate: float, replicas: int = 1) -> Probe:
        """Replay at that rate in requests/s; it ends early if the beginning of the trace already breaks a limit for good."""
        trace = self.at_rate(rate)
        for share in PREFIXES:
            begun = trace.first(max(1, math.ceil(share * len(trace))))
            requests = self._replay(begun, replicas).merged.requests
            if any(_is_lost(slo, requests, len(trace)) for slo in self.scenario.target.limits):
                return Probe(rate, replicas, keeps=False, metrics={})
        return self.measure(rate, replicas)

    def measure(self, rate: float, replicas: int = 1, off_by: Perturbation = AS_MODELLED) -> Probe:
        """Replay the whole trace at that rate in requests/s, even if limits break; step times may be off by `off_by`."""
        trace = self.at_rate(rate)
        records = self._replay(trace, replicas, off_by)
        metrics = self.scenario.metrics(self.sized(replicas), records)
        keeps = self.scenario.target.violation(metrics) == 0 and not self._is_overloaded(trace, records.merged.requests)
        return Probe(rate, replicas, keeps, metrics)

    def at_rate(self, rate: float) -> Trace:
        """The trace at that rate, repeated until it lasts long enough."""
        trace = self.scenario.trace
        least_s = LEAST_CHANGING_S if self.fleet.dynamics else LEAST_DURATION_S
        copies = min(math.ceil(least_s * rate / len(trace)), MOST_REQUESTS // len(trace))
        return scale_rate(tile(trace, max(1, copies)), rate / self.trace_rate)

    def _is_overloaded(self, trace: Trace, requests: RequestRecords) -> bool:
        """Whether there was a backlog when the last request arrived; with limited concurrency, when it should have been sent."""
        last_s = (requests if self.scenario.clients.max_concurrency is None else trace).arrival_s[-1]
        begun_s = requests.first_scheduled_s[np.isfinite(requests.first_scheduled_s)]
        return is_backlog(int(np.count_nonzero(begun_s > last_s)), len(requests))

    def _replay(self, trace: Trace, replicas: int, off_by: Perturbation = AS_MODELLED) -> ClusterRecords:
        return self.scenario.replay(trace, self.sized(replicas), off_by)


def _is_lost(slo: Slo, requests: RequestRecords, num_requests: int) -> bool:
    """Whether so many requests exceed the limit that the percentile breaks it, whatever the remaining requests do."""
    if slo.latency == "itl":
        return False
    num_over = int(np.count_nonzero(is_over(slo, requests)))
    return num_over > (1 - slo.percentile / 100) * num_requests + 1
