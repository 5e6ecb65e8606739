"""A trace at another request rate: its own pattern, stretched or squeezed."""

import math
from dataclasses import replace

import numpy as np

from sim.errors import ConfigError, TraceError
from sim.workload.columns import MAX_SECONDS
from sim.workload.trace import Trace


def at_rates(trace: Trace, *, rate_scale: float, request_rate: float | None) -> Trace:
    """The requests at a multiple of the trace's rate, or at a rate. Raises ConfigError for both at once."""
    if request_rate is None:
        return scale_rate(trace, rate_scale)
    if rate_scale != 1.0:
        raise ConfigError(
            f"`request_rate` {request_rate:g} and `rate_scale` {rate_scale:g} both set the rate; leave one of them out."
        )
    return at_request_rate(trace, request_rate)


def scale_rate(trace: Trace, rate_scale: float) -> Trace:
    """The same requests at `rate_scale` times the rate. Raises ConfigError unless it is finite, above 0 and sane."""
    if not (math.isfinite(rate_scale) and rate_scale > 0):
        raise ConfigError(
            f"`rate_scale` must be a finite number above 0, got {rate_scale}; 2 doubles the request rate."
        )
    if trace.arrival_s[-1] / rate_scale > MAX_SECONDS:
        raise ConfigError(f"`rate_scale` {rate_scale} stretches the trace past {MAX_SECONDS:.0e} s; use a larger one.")
    return trace if rate_scale == 1.0 else replace(trace, arrival_s=trace.arrival_s / rate_scale)


def at_request_rate(trace: Trace, request_rate: float) -> Trace:
    """The n requests spread over n / `request_rate` seconds from 0, their gaps in the trace's own proportions; all at 0
    where the rate is infinite.

    Raises ConfigError for a rate that no traffic has, TraceError where all come at once: that is no pattern.
    """
    if not request_rate > len(trace) / MAX_SECONDS:
        raise ConfigError(
            f"`request_rate` must be above 0 requests/s and end within {MAX_SECONDS:.0e} s, got {request_rate:g}; "
            "`inf` sends all at once."
        )
    if math.isinf(request_rate):
        return replace(trace, arrival_s=np.zeros(len(trace)))
    if trace.duration_s == 0 and len(trace) > 1:
        raise TraceError(
            f"{trace.source or 'the trace'}: all {len(trace):,} requests come at once, which is no pattern for "
            f"`request_rate` {request_rate:g}; use `inf`, or a trace with times."
        )
    since_first = trace.arrival_s - trace.arrival_s[0]
    shares = since_first / (trace.duration_s or 1.0)
    return replace(trace, arrival_s=shares * (len(trace) / request_rate))


def rate_json(request_rate: float | None) -> float | str | None:
    """A request rate as `vllm bench serve` saves it: JSON has no infinity."""
    return "inf" if request_rate is not None and math.isinf(request_rate) else request_rate
