"""Answers say how far they can be trusted, and ties allow for it."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import sim
from sim.search import finals
from sim.search.evaluate import Outcome, Scenario, Task
from sim.search.executors import Serial
from sim.search.optimize import optimize
from sim.search.perturbed import AS_MODELLED, Perturbation, perturbations
from sim.search.ranking import is_tied
from sim.search.runner import Runner
from sim.search.space import Space
from sim.search.store import DictMemory
from sim.search.trust import GIVEN_BAND, forecast_band, forecast_confidence, step_times_off
from sim.specs.engine import EngineConfig
from tests.search.makers import STEPS, gpu, make_runner, make_scenario, make_trace, model

ENGINE = EngineConfig(max_model_len=2048)
UNKNOWN = {"level": "unknown", "text": "step times as given"}
LEVELS = pytest.mark.parametrize(("name", "level"), [("h100-sxm", "validated"), ("l4", "extrapolated")])


class Recording(Serial):
    """Remembers which perturbations were asked for."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.seen: set[Perturbation] = set()

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Outcome]]:
        self.seen |= {task.perturbation for task in tasks}
        return super().run(tasks)


def simulated(name: str) -> dict[str, Any]:
    confidence: dict[str, Any] = sim.simulate(model(), gpu(name), make_trace(), engine=ENGINE).summary["confidence"]
    return confidence


@LEVELS
def test_optimize_is_as_sure_as_simulate_is_of_the_winner(name: str, level: str) -> None:
    """Word for word, with what the search adds, the width of the band among it."""
    found = sim.optimize(model(), gpu(name), make_trace(), space={"max_num_seqs": [4, 32]}, engine=ENGINE).summary
    confidence = found["confidence"]
    assert confidence["level"] == level
    assert {key: value for key, value in confidence.items() if key != "notes"} == simulated(name)
    band = f"{confidence['bands_percent']['tpot']:.1f}%"
    assert f"step times {band} off" in confidence["notes"][1]
    assert f"up to {band} behind are tied" in confidence["notes"][2]


@LEVELS
def test_capacity_is_as_sure_as_simulate(name: str, level: str) -> None:
    """Of the deployment that is asked about."""
    confidence = sim.capacity(model(), gpu(name), make_trace(), slo=["e2el_p99=5s"], engine=ENGINE).summary[
        "confidence"
    ]
    assert confidence["level"] == level
    assert confidence == simulated(name)


def test_nothing_is_known_of_given_step_times() -> None:
    """Neither search says more than `simulate`."""
    given: dict[str, Any] = {"engine": ENGINE, "step_time_model": STEPS}
    best = sim.optimize(model(), gpu(), make_trace(), space={"max_num_seqs": [4, 32]}, **given).summary["confidence"]
    most = sim.capacity(model(), gpu(), make_trace(), slo=["e2el_p99=5s"], **given).summary["confidence"]
    assert {key: value for key, value in best.items() if key != "notes"} == most == UNKNOWN
    assert "step times 10.0% off" in best["notes"][-1]


@pytest.mark.parametrize("name", ["h100-sxm", "l4"])
def test_ties_are_decided_by_step_times_as_far_off_as_measured_runs_were(name: str) -> None:
    """Further on a GPU that was never measured."""
    scenario = make_scenario(gpu=gpu(name), step_time=None)
    executor = Recording(scenario)
    runner = Runner(scenario.target, executor, DictMemory(), None)
    findings = optimize(scenario, Space({"max_num_seqs": (4, 32)}), runner, trials=2, seed=0)
    confidence = forecast_confidence(scenario, findings.verdict.winner.candidate.params)
    assert confidence is not None
    band = confidence.bands["tpot"] / 100
    assert findings.verdict.band == band
    assert executor.seen == {AS_MODELLED, *perturbations(band)}


def test_the_widest_band_among_candidates_counts() -> None:
    """Another tensor parallel size is another size; a tenth stands for step times that are given."""
    scenario = make_scenario(model=model("Llama-3.1-70B"), gpu=gpu("b200-sxm"), step_time=None)
    sizes = [{"tensor_parallel_size": size} for size in (1, 2, 4, 8)]
    alone = [forecast_confidence(scenario, params) for params in sizes]
    bands = [confidence.bands["tpot"] / 100 for confidence in alone if confidence]
    assert len(set(bands)) > 1
    assert forecast_band(scenario, sizes) == max(bands)
    assert forecast_band(make_scenario(), sizes) is None
    assert step_times_off(None) == GIVEN_BAND


def tied_seqs(band: float | None, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Which values of max_num_seqs are tied where forecasts are that far off."""
    monkeypatch.setattr(finals, "forecast_band", lambda *_: band)
    scenario = make_scenario(make_trace(100, rate_rps=100.0), step_time=None)
    space = Space({"max_num_seqs": (16, 32, 48, 64, 96)})
    verdict = optimize(scenario, space, make_runner(scenario), trials=5, seed=0).verdict
    return {finalist.candidate.params["max_num_seqs"] for finalist in verdict.finalists if finalist.is_tied}


def test_a_wide_band_ties_what_a_narrow_one_tells_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for 32 requests is a few per cent behind room for more: within a forecast that is 10 % off, not within an exact one."""
    exact, rough = tied_seqs(None, monkeypatch), tied_seqs(0.1, monkeypatch)
    assert 32 not in exact
    assert rough == exact | {32}


def test_differences_inside_the_band_are_ties() -> None:
    """Four per cent, which stand out otherwise, do not where forecasts are 5 % off; six do."""
    level = [100.0] * 8
    assert not is_tied(level, [104.0] * 8)
    assert is_tied(level, [104.0] * 8, 0.05)
    assert not is_tied(level, [106.0] * 8, 0.05)
