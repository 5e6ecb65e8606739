"""Measured runs are read strictly: a wrong file is one sentence with file, field and rule."""

from pathlib import Path
from typing import Any

import pytest

from sim.errors import RunsError
from sim.measure.runs import read_runs, select
from tests.measure.makers import CLOSED_LOOP, FIGURES, OPEN_LOOP, make_run, run_json, write_runs
from tests.shared import SHARED, needs_shared


@needs_shared
@pytest.mark.parametrize(("name", "count"), [("serving", 38), ("closed_loop", 611)])
def test_the_published_runs_are_read(name: str, count: int) -> None:
    """Every run of the reference collection."""
    assert len(read_runs(SHARED / f"measured/{name}.json")) == count


@pytest.mark.parametrize(
    ("run", "problem"),
    [
        (run_json(engine_versoin="x"), "`runs.0.engine_versoin` is not a known key. Did you mean engine_version"),
        (run_json(clock="wall"), "`runs.0.clock` should be 'engine' or 'client', got 'wall'."),
        (run_json(measured=[]), "`runs.0.measured` "),
        (run_json(workload=OPEN_LOOP | {"output_tokens": 0}), "`runs.0.workload.open_loop.output_tokens` should be"),
        (
            run_json(workload=CLOSED_LOOP | {"prompt_tokens": {"uniform": [9, 3]}}),
            "`runs.0.workload.closed_loop.prompt",
        ),
        (run_json(workload={"kind": "burst"}), "`runs.0.workload` "),
        (run_json(measured=[FIGURES | {"stage": 2}]), "`runs.0` must measure stages below 2 or null for the whole run"),
    ],
)
def test_a_wrong_file_is_one_sentence(tmp_path: Path, run: dict[str, Any], problem: str) -> None:
    """File, field and rule."""
    path = write_runs(tmp_path, run)
    with pytest.raises(RunsError) as caught:
        read_runs(path)
    assert str(caught.value).startswith(f"{path}: {problem}")
    assert "\n" not in str(caught.value)


def test_ids_are_unique(tmp_path: Path) -> None:
    """Two runs of one id could not be told apart in a report."""
    with pytest.raises(RunsError, match="a is repeated"):
        read_runs(write_runs(tmp_path, run_json(), run_json()))


def test_other_formats_are_refused(tmp_path: Path) -> None:
    """Only format 1 exists."""
    with pytest.raises(RunsError, match="`format` should be 1, got 2"):
        read_runs(write_runs(tmp_path, run_json(), format=2))


def test_a_missing_or_broken_file(tmp_path: Path) -> None:
    """Neither is a traceback."""
    with pytest.raises(RunsError, match="cannot be read"):
        read_runs(tmp_path / "absent.json")
    broken = tmp_path / "broken.json"
    broken.write_text("{", encoding="utf-8")
    with pytest.raises(RunsError, match=r"broken\.json: is not valid JSON"):
        read_runs(broken)


def test_figures_by_name(tmp_path: Path) -> None:
    """Latencies by metric and statistic; what was not measured is absent."""
    figures = make_run(tmp_path, measured=[FIGURES | {"makespan_s": 3.0}]).measured[0].figures
    assert figures == {"ttft_mean": 30.0, "tpot_mean": 8.0, "e2el_mean": 180.0, "e2el_p99": 200.0, "makespan_s": 3.0}


def test_versions_that_say_nothing(tmp_path: Path) -> None:
    """`vllm 0.15.1 (fork)` is 0.15.1; unknown and nightly builds are no version."""
    versions = [
        make_run(tmp_path, engine_version=f"vllm {text}").vllm_version for text in ("0.15.1 (a fork)", "unknown")
    ]
    assert versions == ["0.15.1", None]


def test_known_arguments_only(tmp_path: Path) -> None:
    """Runs whose arguments are unknown are left out on request; with none left that is an error."""
    known, unknown = make_run(tmp_path), make_run(tmp_path, engine_args_known=False)
    assert select([known, unknown], only_known_args=True) == (known,)
    assert select([known, unknown], only_known_args=False) == (known, unknown)
    with pytest.raises(RunsError, match="no run is left"):
        select([unknown], only_known_args=True)
