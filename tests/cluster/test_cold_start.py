"""Cold starts by phase."""

import json

import pytest

from benchmarks.fit_cold_starts import MEASURED as TABLE
from benchmarks.fit_cold_starts import OUTPUT, TOTALS, fitted, read
from sim.cluster.cold_start import COMPILES, IMAGES, WEIGHTS, StartUp
from tests.shared import SHARED, needs_shared


def test_weights_take_their_bytes_over_the_measured_rate() -> None:
    found = StartUp(image="streamed", weights="nfs").phases(65.5e9)
    assert found["image_s"] == 1.8
    assert found["weights_s"] == pytest.approx(65.5 / 3.124, rel=1e-3)


def test_eager_engines_neither_compile_nor_capture() -> None:
    eager, compiled = (StartUp().phases(1e9, enforce_eager=is_eager) for is_eager in (True, False))
    assert compiled.keys() - eager.keys() == {"compile_s", "graphs_s"}
    assert sum(compiled.values()) - sum(eager.values()) == pytest.approx(compiled["compile_s"] + compiled["graphs_s"])


def test_seconds_that_are_given_are_taken() -> None:
    assert StartUp(seconds=12.0).phases(1e12) == {"given_s": 12.0}


def test_every_choice_has_a_number() -> None:
    known = json.loads(OUTPUT.read_text())
    choices = {"image_s": IMAGES, "weights_gb_per_s": WEIGHTS, "compile_s": COMPILES}
    assert {phase: tuple(known[phase]) for phase in choices} == choices


@pytest.mark.parametrize(("name", "weights_gb", "start_up", "measured_s"), TOTALS)
def test_measured_starts_are_met_within_two_fifths(
    name: str, weights_gb: float, start_up: StartUp, measured_s: float
) -> None:
    """Most of these starts gave a phase to the fit."""
    assert sum(start_up.phases(weights_gb * 1e9).values()) == pytest.approx(measured_s, rel=0.4), name


@needs_shared
def test_numbers_are_those_of_the_table() -> None:
    assert fitted(read(SHARED / "fleet" / TABLE)) == json.loads(OUTPUT.read_text())
