"""`servecast validate` and `servecast calibrate` from the command line."""

import json
from pathlib import Path

import pytest

from sim.cli import run
from tests.measure.makers import CLOSED_LOOP, make_run, run_json, write_runs


def test_validate_prints_tables_and_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Errors by metric, by group, beside other simulators and by run; and why a run was left out."""
    path = write_runs(tmp_path, run_json(), run_json(id="b", gpu="h1000"))
    assert run(["validate", str(path)]) == 0
    out = capsys.readouterr().out
    for part in ("tpot_mean", "median APE % by", "BLIS roofline", "Llama-3.1-8B-Instruct", "1 not replayed (b): GPU"):
        assert part in out


def test_validate_prints_json_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs with their errors and a summary by metric."""
    assert run(["validate", str(write_runs(tmp_path, run_json())), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["summary"]["tpot_mean"]) == {"n", "mape", "median_ape"}
    assert found["runs"][0]["id"] == "a"


def test_validate_draws_one_plot(tmp_path: Path) -> None:
    """A PNG of measured against predicted; an impossible place is an error."""
    path = write_runs(tmp_path, run_json())
    assert run(["validate", str(path), "--plot", str(tmp_path / "scatter.png")]) == 0
    assert (tmp_path / "scatter.png").read_bytes().startswith(b"\x89PNG")
    assert run(["validate", str(path), "--plot", str(tmp_path / "absent/scatter.png")]) == 2


def test_only_known_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With none left, that is an error of one sentence."""
    path = write_runs(tmp_path, run_json(engine_args_known=False))
    assert run(["validate", str(path), "--only-known-args"]) == 2
    assert "no run is left" in capsys.readouterr().err


def test_calibrate_writes_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before and after, the factors, the verdict; and a profile that validate takes."""
    runs = write_runs(tmp_path, *(run_json(id=f"c{n}", workload=CLOSED_LOOP | {"concurrency": n}) for n in (2, 8)))
    profile = tmp_path / "mine.yaml"
    assert run(["calibrate", str(runs), "--gpu", "h100-sxm", "--out", str(profile)]) == 0
    said = capsys.readouterr()
    assert "after, held out" in said.out
    assert "memory_efficiency" in said.out
    assert f"The profile is in {profile}." in said.err
    assert run(["validate", str(runs), "--gpu", str(profile)]) == 0


def test_calibrate_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Base, runs, factors, errors and verdict."""
    make_run(tmp_path)
    runs, profile = write_runs(tmp_path, run_json(workload=CLOSED_LOOP)), tmp_path / "mine.yaml"
    assert run(["calibrate", str(runs), "--gpu", "h100-sxm", "--out", str(profile), "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"base", "runs", "scales", "errors", "verdict"}
