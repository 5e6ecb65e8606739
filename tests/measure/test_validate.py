"""Errors are signed per cent; summaries are by metric and by kind of run; runs that cannot be replayed say why."""

from pathlib import Path

import pytest

from sim.measure.replay import replay
from sim.measure.validate import Comparison, validate
from tests.measure.makers import FIGURES, make_run


def test_errors_are_signed_per_cent() -> None:
    """110 for a measured 100 is +10; what only one side has, or is zero, has no error."""
    compared = Comparison({"a": 110.0, "b": 45.0, "c": 1.0}, {"a": 100.0, "b": 50.0, "d": 1.0})
    assert compared.errors == pytest.approx({"a": 10.0, "b": -10.0})


def test_a_run_measured_as_predicted_has_no_error(tmp_path: Path) -> None:
    """Fed with its own prediction, a run is exact in every figure."""
    predicted = replay(make_run(tmp_path)).figures[None]
    measured = {"stage": None, "ttft_ms": {"mean": predicted["ttft_mean"]}, "e2el_ms": {"p99": predicted["e2el_p99"]}}
    result = validate([make_run(tmp_path, measured=[measured])]).results[0]
    assert result.whole is not None
    assert result.whole.errors == pytest.approx({"ttft_mean": 0, "e2el_p99": 0})


def test_summaries_and_groups(tmp_path: Path) -> None:
    """Two runs, one of them off by twice as much: mean and median lie between; groups hold one each."""
    near, far = (
        make_run(tmp_path, id=name, quality=quality, measured=[FIGURES | {"tpot_ms": {"mean": tpot}}])
        for name, quality, tpot in (("near", "A", 8.0), ("far", "B", 4.0))
    )
    found = validate([near, far])
    errors = [abs(whole.errors["tpot_mean"]) for _, whole in found.replayed]
    assert found.summary["tpot_mean"].n == 2
    assert found.summary["tpot_mean"].mape == pytest.approx(sum(errors) / 2)
    by_quality = found.summary_by("quality")
    assert [by_quality[name]["tpot_mean"].mape for name in ("A", "B")] == pytest.approx(errors)
    assert set(found.summary_by("family")) == {"llama"}
    assert found.worst("tpot_mean", 1)[0][0].run.id == "far"


def test_an_impossible_run_is_listed_with_its_reason(tmp_path: Path) -> None:
    """It counts in no summary."""
    found = validate([make_run(tmp_path, gpu="h1000"), make_run(tmp_path, id="b")]).to_json()
    assert "is neither a known name" in found["runs"][0]["reason"]
    assert found["summary"]["tpot_mean"]["n"] == 1


def test_json_has_the_documented_keys(tmp_path: Path) -> None:
    """Each run with predicted, measured and errors; block counts are compared where they were logged."""
    run = make_run(tmp_path, logged={"num_gpu_blocks": 28000})
    calls: list[tuple[int, int]] = []
    found = validate([run], progress=lambda done, total: calls.append((done, total))).to_json()
    only = found["runs"][0]
    assert {"id", "gpu", "model", "predicted", "measured", "errors", "stages"} <= only.keys()
    assert abs(only["errors"]["num_gpu_blocks"]) < 5
    assert set(found["summary"]["e2el_p99"]) == {"n", "mape", "median_ape"}
    assert calls == [(1, 1)]
