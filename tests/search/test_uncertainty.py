"""Answers say how far they can be trusted, and ties allow for it."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import sim
from sim.measure.forecast import GIVEN_BAND
from sim.search.evaluate import Outcome, Scenario, Task
from sim.search.optimize import optimize
from sim.search.ranking import Candidate, is_tied
from sim.search.runner import Runner, Serial
from sim.search.space import Space
from sim.search.store import DictMemory
from sim.search.uncertainty import forecast_band, perturbations, step_times_off
from sim.specs.engine import EngineConfig
from sim.steptime.perturbed import AS_MODELLED, Perturbation
from tests.search.makers import STEPS, gpu, make_scenario, make_trace, model

ENGINE = EngineConfig(max_model_len=2048)
UNKNOWN = {"level": "unknown", "text": "step times as given"}
SURE = ("level", "extrapolates", "num_runs", "bands_percent", "text")
GPUS = pytest.mark.parametrize("name", ["h100-sxm", "l4"])


class Recording(Serial):
    """Remembers which perturbations were asked for."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.seen: set[Perturbation] = set()

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Outcome]]:
        self.seen |= {task.perturbation for task in tasks}
        return super().run(tasks)


def simulated(name: str, engine: EngineConfig = ENGINE) -> dict[str, Any]:
    confidence: dict[str, Any] = sim.simulate(model(), gpu(name), make_trace(), engine=engine).summary["confidence"]
    return confidence


def sure(confidence: dict[str, Any]) -> dict[str, Any]:
    return {key: confidence[key] for key in SURE}


@GPUS
def test_optimize_is_as_sure_as_simulate_is_of_the_winner(name: str) -> None:
    """Word for word, with what the search adds, and an interval for each figure of each finalist."""
    found = sim.optimize(model(), gpu(name), make_trace(), space={"max_num_seqs": [4, 32]}, engine=ENGINE).summary
    confidence = found["confidence"]
    assert sure(confidence) == sure(simulated(name, EngineConfig(max_model_len=2048, max_num_seqs=32)))
    assert len(confidence["notes"]) == 3
    for finalist in found["finalists"]:
        low, high = finalist["confidence"]["intervals"]["p99_e2el_ms"]
        assert low < finalist["metrics"]["p99_e2el_ms"] < high
    assert found["finalists"][0]["confidence"]["intervals"] == confidence["intervals"]


@GPUS
def test_capacity_is_as_sure_as_simulate(name: str) -> None:
    """Of the deployment that is asked about, at the rate that it was found to take; figures there have intervals."""
    found = sim.capacity(model(), gpu(name), make_trace(), slo=["e2el_p99=10s"], engine=ENGINE).summary
    assert found["confidence"]["level"] == simulated(name)["level"]
    low, high = found["confidence"]["intervals"]["p99_e2el_ms"]
    assert low < found["metrics"]["p99_e2el_ms"] < high


def test_nothing_is_known_of_given_step_times() -> None:
    """Neither search says more than `simulate`; they may be a tenth off."""
    given: dict[str, Any] = {"engine": ENGINE, "step_time_model": STEPS}
    best = sim.optimize(model(), gpu(), make_trace(), space={"max_num_seqs": [4, 32]}, **given).summary["confidence"]
    most = sim.capacity(model(), gpu(), make_trace(), slo=["e2el_p99=5s"], **given).summary["confidence"]
    assert all({key: found[key] for key in UNKNOWN} == UNKNOWN for found in (best, most))
    assert best["intervals"]["mean_tpot_ms"][1] > best["intervals"]["mean_tpot_ms"][0]
    assert "step times 10.0% off" in best["notes"][-1]


def test_intervals_can_be_left_out() -> None:
    """Answers are then what they were before there were any, and nothing more is replayed."""
    options: dict[str, Any] = {"engine": ENGINE, "step_time_model": STEPS, "intervals": False}
    best = sim.optimize(model(), gpu(), make_trace(), space={"max_num_seqs": [4, 32]}, **options).summary
    most = sim.capacity(model(), gpu(), make_trace(), slo=["e2el_p99=5s"], **options).summary
    assert {key: value for key, value in best["confidence"].items() if key != "notes"} == UNKNOWN
    assert all(finalist["confidence"] == UNKNOWN for finalist in best["finalists"])
    assert most["confidence"] == UNKNOWN


@pytest.mark.parametrize("name", ["h100-sxm", "l4"])
def test_ties_are_decided_by_step_times_as_far_off_as_measured_runs_were(name: str) -> None:
    """Further on a GPU that was never measured."""
    scenario = make_scenario(gpu=gpu(name), step_time=None)
    executor = Recording(scenario)
    runner = Runner(scenario.target, executor, DictMemory(), None)
    findings = optimize(scenario, Space({"max_num_seqs": (4, 32)}), runner, trials=2, seed=0)
    finalists = [finalist.candidate for finalist in findings.verdict.finalists]
    band = forecast_band(scenario, finalists)
    assert band is not None
    assert band > 0.04
    assert findings.verdict.band == band
    assert executor.seen == {AS_MODELLED, *perturbations(band)}


def replayed(prompt_tokens: int) -> Candidate:
    """A candidate that completed a hundred requests with such prompts."""
    metrics = {
        "completed": 100,
        "num_steps": 800,
        "total_input_tokens": 100 * prompt_tokens,
        "total_output_tokens": 25_000,
        "prefix_cache_hit_rate": 0.98,
    }
    return Candidate({}, 0, 1, Outcome(None, metrics), 1.0)


def test_the_widest_band_among_candidates_counts() -> None:
    """Prompts of 100,000 tokens were never measured; a tenth stands for step times that are given."""
    scenario = make_scenario(step_time=None)
    short, long = replayed(550), replayed(100_000)
    assert (forecast_band(scenario, [short]) or 0.0) < (forecast_band(scenario, [long]) or 0.0)
    assert forecast_band(scenario, [short, long]) == forecast_band(scenario, [long])
    assert forecast_band(make_scenario(), [short]) is None
    assert step_times_off(None) == GIVEN_BAND


def test_differences_inside_the_band_are_ties() -> None:
    """Four per cent, which stand out otherwise, do not where forecasts are 5 % off; six do."""
    level = [100.0] * 8
    assert not is_tied(level, [104.0] * 8)
    assert is_tied(level, [104.0] * 8, 0.05)
    assert not is_tied(level, [106.0] * 8, 0.05)
