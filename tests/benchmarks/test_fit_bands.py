"""Bands cover a share of errors; slow requests of a server of experts that starts have their own."""

from collections.abc import Iterable
from math import exp, log
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fit_bands import REFERENCE, Known, Slow, fit, known_runs, slow_error
from sim.measure.confidence import Residual
from sim.measure.likeness import Traits
from tests.measure.makers import make_run

DENSE = Traits("h100-sxm", "llama", "bf16", 8e9)
EXPERTS = Traits("h100-sxm", "mixtral", "bf16", 8e9, has_experts=True)


def runs_of(traits: Traits, slow: Iterable[tuple[float, float]]) -> list[Known]:
    """A run for each error of a P99 and the time by which a hundredth of its requests had arrived."""
    errors = {"step": 0.03, "ttft": -0.05, "blocks": 0.01}
    return [
        Known(f"{traits.family}-{number}", traits.family, Residual(traits, errors), (Slow(*one),))
        for number, one in enumerate(slow)
    ]


def test_a_start_is_as_long_as_makes_bands_narrowest() -> None:
    """Servers of experts are 40 % slow at 12 s and as all others at 17 s; a dense one is never thought to start."""
    dense = runs_of(DENSE, [(0.04, 1.0)] * 10 + [(-0.3, 1.0)])
    starting, running = [(0.4, 6.0), (0.4, 12.0)] * 3, [(0.04, 17.0)] * 6
    bands, start_s = fit(dense + runs_of(EXPERTS, starting + running))
    assert start_s == 15
    assert bands["tail"].at(1) == pytest.approx(0.04, abs=1e-3)
    assert bands["start"].at(1) == pytest.approx(0.4, abs=1e-3)
    assert (bands["step"].at(1), bands["ttft"].at(1)) == pytest.approx((0.03, 0.05), abs=1e-3)


def test_slow_requests_that_were_faster_widen_nothing() -> None:
    """One in three is slower by 10 % than step times explain, all others are much faster."""
    bands, _ = fit(runs_of(DENSE, [(-0.5, 1.0)] * 6 + [(0.1, 1.0)] * 4) + runs_of(EXPERTS, [(-0.5, 99.0)] * 2))
    assert bands["tail"].at(1) == pytest.approx(0.1, abs=1e-3)


@pytest.mark.parametrize("step", [-0.02, 0.05])
def test_the_error_of_a_p99_is_what_its_own_step_times_leave(step: float) -> None:
    """P99 shrinks as fast as the time per token and grows twice as fast; both are off, P99 by 20 % more."""

    def at(factor: float) -> dict[str, float]:
        return {"tpot_mean": 10 * factor, "e2el_p99": 1000 * factor ** (2 if factor > 1 else 1)}

    low, high = at(1 - REFERENCE), at(1 + REFERENCE)
    measured = at(exp(step)) | {"e2el_p99": 1.2 * at(exp(step))["e2el_p99"]}
    assert slow_error(measured, at(1), low, high) == pytest.approx(log(1.2))
    assert slow_error({"tpot_mean": 10.0}, at(1), low, high) is None


def test_the_error_of_a_queue_is_not_told() -> None:
    """Where P99 grows five times as fast as the step time."""
    low, point, high = ({"tpot_mean": 10 * one, "e2el_p99": 1000 * one**5} for one in (0.93, 1.0, 1.07))
    assert slow_error(point, point, low, high) is None


@pytest.mark.parametrize(
    ("model", "slow"), [("meta-llama/Llama-3.1-8B-Instruct", 1), ("mistralai/Mixtral-8x7B-v0.1", 2)]
)
def test_a_first_stage_tells_of_a_server_of_experts(tmp_path: Path, model: str, slow: int) -> None:
    """Its P99 is 50 % up on that of the whole run; a hundredth of its requests arrive sooner than one of all."""
    figures: dict[str, Any] = {"tpot_ms": {"mean": 8.0}, "ttft_ms": {"mean": 30.0}}
    stages = ((None, 200.0), (0, 300.0), (1, 200.0))
    measured = [figures | {"stage": stage, "e2el_ms": {"mean": 180.0, "p99": p99}} for stage, p99 in stages]
    (known,) = known_runs([make_run(tmp_path, model=model, gpu="h200-sxm", measured=measured)])
    whole, *first = known.slow
    assert len(known.slow) == slow
    for one in first:
        assert 0.2 < one.error - whole.error < 0.7
        assert 0 <= one.arrived_s < whole.arrived_s < 20
