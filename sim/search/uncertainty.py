"""The confidence in the forecast of a candidate, from how far off its step times may be."""

from collections.abc import Iterable, Mapping, Sequence
from math import expm1
from typing import Any

from sim.deployment import Deployment
from sim.measure.forecast import AS_GIVEN, GIVEN_BAND, Replay, confidence_json, confidence_of, forecast_of, least_known
from sim.measure.intervals import ends
from sim.search.blueprint import Params
from sim.search.evaluate import Scenario, Task
from sim.search.ranking import Candidate
from sim.search.runner import Runner
from sim.steptime.perturbed import Perturbation, all_off_by


def forecast_band(scenario: Scenario, candidates: Iterable[Candidate]) -> float | None:
    """The widest uncertainty of step times among the candidates, as a share; None if step times were given by the user."""
    found = [confidence_of(_least_known(scenario, one.params, one.metrics), one.metrics) for one in candidates]
    return max((expm1(one.bands.step) for one in found if one), default=None)


def step_times_off(band: float | None) -> float:
    """The share by which step times may be off; GIVEN_BAND if they were given."""
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


def forecasts(
    scenario: Scenario, wholes: Sequence[tuple[Params, Mapping[str, Any]]], runner: Runner, *, intervals: bool
) -> tuple[dict[str, Any], ...]:
    """Those of candidates and what they did on the whole trace, the first with the rate at which it would not be at its limit."""
    if not intervals:
        return tuple(
            confidence_json(confidence_of(_least_known(scenario, params, metrics), metrics))
            for params, metrics in wholes
        )
    rate = scenario.trace.request_rate
    runner.run([task for params, metrics in wholes for task in _at_ends(scenario, params, metrics)], "intervals")
    return tuple(
        forecast_of(
            _least_known(scenario, params, metrics),
            metrics,
            _replay(params, runner),
            request_rate=rate,
            clock=scenario.clients.clock,
            says_limit=number == 0,
        )
        for number, (params, metrics) in enumerate(wholes)
    )


def _least_known(scenario: Scenario, params: Params, metrics: Mapping[str, Any]) -> Deployment:
    """Of the candidate's pools the one by which all of it is judged."""
    return least_known([pool.deployment for pool in scenario.deploy_fleet(params).pools], metrics)


def _at_ends(scenario: Scenario, params: Params, metrics: Mapping[str, Any]) -> list[Task]:
    """The replays that every interval needs, to be run in parallel."""
    found = confidence_of(_least_known(scenario, params, metrics), metrics)
    return [Task(params, perturbation=all_off_by(factor)) for factor in ends(found.bands if found else AS_GIVEN)]


def _replay(params: Params, runner: Runner) -> Replay:
    def replay(factor: float, rate_share: float) -> Mapping[str, Any]:
        (outcome,) = runner.run([Task(params, perturbation=all_off_by(factor), rate_scale=rate_share)], "intervals")
        return outcome.metrics

    return replay
