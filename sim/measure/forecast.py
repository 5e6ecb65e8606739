"""The error of a forecast: replays at both ends of the step times' band, and whether the deployment is at its limit."""

from collections.abc import Callable, Mapping, Sequence
from math import log1p
from typing import Any

from sim.cluster.front_end import Clock
from sim.deployment import Deployment
from sim.errors import SimError
from sim.measure.confidence import Bands, Confidence, confidence
from sim.measure.intervals import ends, intervals
from sim.measure.likeness import regime, traits_of
from sim.measure.queueing import P99S, Wide, widest
from sim.measure.steady_rate import Found, Notches, likely_share, steady_rate
from sim.units import MS

Replay = Callable[[float, float], Mapping[str, Any]]
"""The figures of a replay with step times so many times as long, at a share of the request rate. May raise SimError."""

GIVEN_BAND = 0.1  # of given step times, whose errors are unknown; most of the roofline's are smaller
AS_GIVEN = Bands(step=log1p(GIVEN_BAND), ttft=0.0, p95=0.0, p99=0.0, blocks=0.0)


def confidence_of(deployment: Deployment, metrics: Mapping[str, Any] | None = None) -> Confidence | None:
    """Judged by the errors on measured runs with a similar deployment and load; None if step times are given."""
    if deployment.step_times.given:
        return None
    return confidence(traits_of(deployment, metrics))


def least_known(deployments: Sequence[Deployment], metrics: Mapping[str, Any] | None = None) -> Deployment:
    """Of the pools of a fleet the one with the widest band of step times, by which all of it is judged; the first of equals."""

    def width(deployment: Deployment) -> float:
        found = confidence_of(deployment, metrics)
        return (found.bands if found else AS_GIVEN).step

    return max(deployments, key=width) if len(deployments) > 1 else deployments[0]


def forecast_of(
    deployment: Deployment,
    metrics: Mapping[str, Any],
    replay: Replay,
    *,
    request_rate: float | None,
    clock: Clock = "engine",
    says_limit: bool = True,
) -> dict[str, Any]:
    """The confidence in its figures, which are by that clock, with an interval for each; see `forecast`."""
    found = confidence_of(deployment, metrics)
    if regime(metrics) is None:
        return confidence_json(found)
    late_ms = deployment.gpu.operators.host.front_end_s / MS if found and clock == "engine" else 0.0
    return forecast(found, metrics, replay, request_rate=request_rate, late_ms=late_ms, says_limit=says_limit)


def confidence_json(found: Confidence | None) -> dict[str, Any]:
    """The confidence as answers carry it; None stands for given step times, which are not judged."""
    return found.to_json() if found else {"level": "unknown", "text": "step times as given"}


def forecast(
    found: Confidence | None,
    point: Mapping[str, Any],
    replay: Replay,
    *,
    request_rate: float | None,
    late_ms: float = 0.0,
    says_limit: bool = True,
) -> dict[str, Any]:
    """The confidence as answers carry it, with `intervals`, and with `at_limit` where a P99's interval is WIDE.

    `point` are the figures as modelled, at `request_rate` requests/s, None where all requests come at once; `late_ms` is by
    how much a client sees tokens later than they have it. `says_limit` False saves the replays for `at_limit`.
    """
    answer = confidence_json(found)
    bands = found.bands if found else AS_GIVEN
    try:
        low, high = (replay(factor, 1.0) for factor in ends(bands))
        answer["intervals"] = intervals(point, low, high, bands, late_ms=late_ms)
        if says_limit and (wide := widest(point, low, high, bands)):
            notches = Notches(bands, point, low, lambda share: replay(1.0, share))
            steady = steady_rate(notches, likely_share(point)) if wide.queues and request_rate else None
            answer["at_limit"] = _at_limit(wide, answer["intervals"][wide.name], request_rate, steady)
    except SimError as error:
        return answer | {"intervals": {}, "text": f"{answer['text']}; not replayed with other step times: {error}"}
    return answer


def _at_limit(wide: Wide, interval: list[float], request_rate: float | None, found: Found | None) -> dict[str, Any]:
    """The warning about a P99 with a WIDE interval, and the rate at which none is WIDE."""
    steady = found.share * request_rate if found and found.is_steady and request_rate else None
    return {
        "metric": wide.name,
        "request_rate": request_rate,
        "steady_request_rate": steady,
        "text": f"{P99S[wide.name]} may be anything from {interval[0]:,.0f} to {interval[1]:,.0f} ms: "
        + (_advice(request_rate, found) if wide.queues else UNLIKE),
    }


UNLIKE = "too little like it was measured"


def _advice(request_rate: float | None, found: Found | None) -> str:
    if request_rate is None or found is None:
        return "the deployment runs at its limit, for all requests come at once"
    rate = found.share * request_rate
    limit = f"the deployment runs at its limit at {request_rate:.3g} requests/s"
    return f"{limit}; at {rate:.3g} it would not" if found.is_steady else f"{limit}, and still does at {rate:.3g}"
