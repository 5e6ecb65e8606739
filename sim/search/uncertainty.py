"""How far the forecast of a candidate can be trusted, and how far off its step times may be."""

from collections.abc import Iterable, Mapping, Sequence
from math import expm1
from typing import Any

from sim.measure.confidence import Confidence, confidence
from sim.measure.forecast import AS_GIVEN, GIVEN_BAND, Replay, confidence_json, forecast
from sim.measure.intervals import ends
from sim.measure.likeness import regime, traits
from sim.measure.perturbed import Perturbation, all_off_by
from sim.search.evaluate import Scenario, Task
from sim.search.ranking import Candidate
from sim.search.runner import Runner
from sim.search.space import Params
from sim.units import MS


def forecast_confidence(
    scenario: Scenario, params: Params, metrics: Mapping[str, Any] | None = None
) -> Confidence | None:
    """By the errors on measured runs like the candidate, with what its replay says of the load; None where step times are
    given. Raises SimError as `deploy` does.
    """
    if scenario.step_time is not None:
        return None
    load = regime(metrics) if metrics else None
    engine = scenario.deploy(params).engine
    return confidence(traits(scenario.model, scenario.gpu, engine, load, composition=scenario.composition))


def forecast_band(scenario: Scenario, candidates: Iterable[Candidate]) -> float | None:
    """The widest band on step times among the candidates, as a share; None where step times are given."""
    found = [forecast_confidence(scenario, one.params, one.metrics) for one in candidates]
    return max((expm1(one.bands.step) for one in found if one), default=None)


def step_times_off(band: float | None) -> float:
    """By what share step times may be off."""
    return GIVEN_BAND if band is None else band


def perturbations(band: float) -> tuple[Perturbation, ...]:
    """The ways in which step times are taken to be off when candidates are compared: decodes, then prefills, slower and
    faster by a share, as 0.1. Faster is the inverse of slower, so that no time falls to 0.
    """
    slower = 1 + band
    return (
        Perturbation(decode=slower),
        Perturbation(decode=1 / slower),
        Perturbation(prefill=slower),
        Perturbation(prefill=1 / slower),
    )


def forecast_of(
    scenario: Scenario,
    params: Params,
    metrics: Mapping[str, Any],
    replay: Replay,
    *,
    request_rate: float | None,
    says_limit: bool = True,
) -> dict[str, Any]:
    """The confidence of a candidate's figures as answers carry it, with an interval for each."""
    found = forecast_confidence(scenario, params, metrics)
    late_ms = scenario.gpu.operators.host.front_end_s / MS if found else 0.0
    return forecast(found, metrics, replay, request_rate=request_rate, late_ms=late_ms, says_limit=says_limit)


def forecasts(
    scenario: Scenario, wholes: Sequence[tuple[Params, Mapping[str, Any]]], runner: Runner, *, intervals: bool
) -> tuple[dict[str, Any], ...]:
    """Those of candidates and what they did on the whole trace, the first with the rate at which it would not be at its limit."""
    if not intervals:
        return tuple(confidence_json(forecast_confidence(scenario, params, metrics)) for params, metrics in wholes)
    rate = scenario.trace.request_rate
    runner.run([task for params, metrics in wholes for task in _at_ends(scenario, params, metrics)], "intervals")
    return tuple(
        forecast_of(scenario, params, metrics, _replay(params, runner), request_rate=rate, says_limit=number == 0)
        for number, (params, metrics) in enumerate(wholes)
    )


def _at_ends(scenario: Scenario, params: Params, metrics: Mapping[str, Any]) -> list[Task]:
    """What every interval takes, to be run side by side."""
    found = forecast_confidence(scenario, params, metrics)
    return [Task(params, perturbation=all_off_by(factor)) for factor in ends(found.bands if found else AS_GIVEN)]


def _replay(params: Params, runner: Runner) -> Replay:
    def replay(factor: float, rate_share: float) -> Mapping[str, Any]:
        (outcome,) = runner.run([Task(params, perturbation=all_off_by(factor), rate_scale=rate_share)], "intervals")
        return outcome.metrics

    return replay
