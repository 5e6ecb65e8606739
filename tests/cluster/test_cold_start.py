"""Cold starts by phase."""

import json

import pytest

from benchmarks.fit_cold_starts import MEASURED as TABLE
from benchmarks.fit_cold_starts import OUTPUT, TOTALS, fitted, read
from sim.cluster.cold_start import COMPILES, IMAGES, WEIGHTS, StartUp, phases, start_up_s
from tests.shared import SHARED, needs_shared


def test_phases_add_up() -> None:
    found = phases(65.5e9, StartUp(image="streamed", weights="nfs"))
    assert found.image_s == 1.8
    assert found.weights_s == pytest.approx(65.5 / 3.124, rel=1e-3)
    assert start_up_s(65.5e9, StartUp(image="streamed", weights="nfs")) == sum(found)


def test_eager_engines_neither_compile_nor_capture() -> None:
    eager, compiled = (phases(1e9, StartUp(), enforce_eager=is_eager) for is_eager in (True, False))
    assert (eager.compile_s, eager.graphs_s) == (0.0, 0.0)
    assert sum(compiled) - sum(eager) == pytest.approx(compiled.compile_s + compiled.graphs_s)


def test_seconds_that_are_given_are_taken() -> None:
    assert start_up_s(1e12, StartUp(seconds=12.0)) == 12.0


def test_every_choice_has_a_number() -> None:
    known = json.loads(OUTPUT.read_text())
    choices = {"image_s": IMAGES, "weights_gb_per_s": WEIGHTS, "compile_s": COMPILES}
    assert {phase: tuple(known[phase]) for phase in choices} == choices


@pytest.mark.parametrize(("name", "weights_gb", "start_up", "measured_s"), TOTALS)
def test_measured_starts_are_met_within_two_fifths(
    name: str, weights_gb: float, start_up: StartUp, measured_s: float
) -> None:
    """Most of these starts gave a phase to the fit."""
    assert start_up_s(weights_gb * 1e9, start_up) == pytest.approx(measured_s, rel=0.4), name


@needs_shared
def test_numbers_are_those_of_the_table() -> None:
    assert fitted(read(SHARED / "fleet" / TABLE)) == json.loads(OUTPUT.read_text())
