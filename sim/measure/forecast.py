"""A forecast that knows its error: replays at both ends of the step times' band, and whether the deployment is at its limit."""

from collections.abc import Callable, Mapping
from math import log, log1p
from typing import Any, NamedTuple

from sim.deployment import Deployment
from sim.errors import SimError
from sim.measure.confidence import Bands, Confidence, confidence
from sim.measure.intervals import Intervals, ends, intervals
from sim.measure.likeness import regime, traits_of
from sim.units import MS

Replay = Callable[[float, float], Mapping[str, Any]]
"""The figures of a replay with step times so many times as long, at a share of the request rate. May raise SimError."""

GIVEN_BAND = 0.1  # of step times from elsewhere, whose errors nobody has measured; most of the roofline's are smaller
WIDE = 2.0  # a P99 whose ends are farther apart than this factor tells of a queue, not of step times
QUEUE_GROWTH = 2.0  # a latency that grows so much faster than step times waits in a queue
LOWER_RATES = tuple(0.75**power for power in range(1, 7))
NARROWINGS = 2  # halvings of the gap between a rate that is steady and one that is not
P99S = {"p99_ttft_ms": "P99 TTFT", "p99_tpot_ms": "P99 TPOT", "p99_itl_ms": "P99 ITL", "p99_e2el_ms": "P99 E2EL"}
AS_GIVEN = Bands(step=log1p(GIVEN_BAND), ttft=0.0, tail=0.0, blocks=0.0)


def confidence_of(deployment: Deployment, metrics: Mapping[str, Any] | None = None) -> Confidence | None:
    """By the errors on measured runs like it, and like the load that its figures tell of; None where step times are given."""
    if deployment.step_times.given:
        return None
    return confidence(traits_of(deployment, metrics))


def forecast_of(
    deployment: Deployment,
    metrics: Mapping[str, Any],
    replay: Replay,
    *,
    request_rate: float | None,
    says_limit: bool = True,
) -> dict[str, Any]:
    """How far its figures can be trusted, with an interval for each; as `forecast` has it."""
    found = confidence_of(deployment, metrics)
    if regime(metrics) is None:
        return confidence_json(found)
    late_ms = deployment.gpu.operators.host.front_end_s / MS if found else 0.0
    return forecast(found, metrics, replay, request_rate=request_rate, late_ms=late_ms, says_limit=says_limit)


def confidence_json(found: Confidence | None) -> dict[str, Any]:
    """As answers carry it; None stands for step times from elsewhere, which are not judged."""
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
    around = _Around(replay, found.bands if found else AS_GIVEN, late_ms)
    try:
        answer["intervals"], wide = around.at(point, 1.0)
        if wide and says_limit:
            steady = around.steady_share() if wide.queues and request_rate else None
            answer["at_limit"] = _at_limit(wide, answer["intervals"][wide.name], request_rate, steady)
    except SimError as error:
        return answer | {"intervals": {}, "text": f"{answer['text']}; not replayed with other step times: {error}"}
    return answer


class _Wide(NamedTuple):
    """A P99 whose interval is WIDE; `queues` where it grows so much faster than the step times."""

    name: str
    queues: bool


class _Around(NamedTuple):
    """Replays at both ends of the band."""

    replay: Replay
    bands: Bands
    late_ms: float

    def at(self, point: Mapping[str, Any] | None, rate_share: float) -> tuple[Intervals, _Wide | None]:
        """The intervals at a share of the rate, around the low end where the point is not known, and the widest P99."""
        low, high = (self.replay(factor, rate_share) for factor in ends(self.bands))
        found = intervals(point or low, low, high, self.bands)
        spans = {name: found[name][1] / found[name][0] for name in P99S if name in found and found[name][0] > 0}
        wide = {name: span for name, span in spans.items() if span > WIDE}
        if point and self.late_ms:
            found = intervals(point, low, high, self.bands, late_ms=self.late_ms)
        if not wide:
            return found, None
        growth = {
            name: log(high[name] / low[name]) / (2 * self.bands.step) for name in wide if low[name] and high[name]
        }
        name = max(wide, key=lambda name: (growth.get(name, 0.0) > QUEUE_GROWTH, wide[name]))
        return found, _Wide(name, growth.get(name, 0.0) > QUEUE_GROWTH)

    def steady_share(self) -> float | None:
        """The largest share of the rate, roughly, at which no P99 tells of a queue; None where none of LOWER_RATES does."""
        over = 1.0
        for share in LOWER_RATES:
            if self._is_steady(share):
                return self._narrowed(share, over)
            over = share
        return None

    def _narrowed(self, steady: float, over: float) -> float:
        for _ in range(NARROWINGS):
            middle = (steady + over) / 2
            steady, over = (middle, over) if self._is_steady(middle) else (steady, middle)
        return steady

    def _is_steady(self, rate_share: float) -> bool:
        wide = self.at(None, rate_share)[1]
        return wide is None or not wide.queues


def _at_limit(
    wide: _Wide, interval: list[float], request_rate: float | None, steady_share: float | None
) -> dict[str, Any]:
    """What to say of a P99 that may be anything: in words, and the rate at which it would not."""
    steady = steady_share * request_rate if steady_share and request_rate else None
    return {
        "metric": wide.name,
        "request_rate": request_rate,
        "steady_request_rate": steady,
        "text": f"{P99S[wide.name]} may be anything from {interval[0]:,.0f} to {interval[1]:,.0f} ms: "
        + (_advice(request_rate, steady) if wide.queues else UNLIKE),
    }


UNLIKE = "too little like it was measured"


def _advice(request_rate: float | None, steady: float | None) -> str:
    if request_rate is None:
        return "the deployment runs at its limit, for all requests come at once"
    if steady is None:
        lowest = LOWER_RATES[-1] * request_rate
        return f"the deployment runs at its limit at {request_rate:.3g} requests/s, and still does at {lowest:.3g}"
    return f"the deployment runs at its limit at {request_rate:.3g} requests/s; at {steady:.3g} it would not"
