import json
from pathlib import Path

import pandas as pd
import pytest

from sim.engine.records import Records
from sim.errors import ConfigError
from sim.metrics.columns import request_columns, step_columns
from sim.metrics.step_parts import step_parts
from sim.metrics.summary import summarize
from sim.report import folder as folder_module
from sim.report.folder import FILES, check_folder, write_folder
from sim.report.plots import latency_figure, timeline_figure
from tests.metrics.makers import DISPATCH, Life, Step, make_records, make_trace
from tests.search.makers import STEPS

RECORDS = make_records(
    Life(first_scheduled_s=0.0, first_token_s=0.1 + 0.2, finish_s=1.0, output_tokens=3),
    Life(arrival_s=0.5, rejected="prompt too long, by far"),
    steps=(Step(0.0, 0.3), Step(0.3, 1.0)),
    itl_s={0.35: 2},
)

WRITTEN = tuple(name for name in FILES if name not in {"replicas.csv", "roofline.png", "report.html", "timeline.json"})


def write(folder: Path, records: Records = RECORDS) -> None:
    """Write that run's results."""
    parts = step_parts(records.steps, STEPS)
    tables = {
        "requests.csv": request_columns(make_trace(records), records.requests),
        "steps.csv": step_columns(records.steps, parts, num_gpu_blocks=11, dispatch=DISPATCH),
    }
    plots = {
        "latency.png": latency_figure(records, title="a run"),
        "timeline.png": timeline_figure(records, num_gpu_blocks=11, title="a run"),
    }
    write_folder(folder, summarize(records, num_gpu_blocks=11, dispatch=DISPATCH), tables, plots, {})


@pytest.fixture
def _plain_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty files for plots, where a test is about something else."""
    monkeypatch.setattr(folder_module, "save", lambda _, path: path.touch())


def names(folder: Path) -> list[str]:
    """Everything in a folder, hidden or not."""
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_holds_summary_requests_steps_and_two_plots(tmp_path: Path) -> None:
    """The files say what the records say, times to the nanosecond, nothing else is left beside them."""
    write(tmp_path / "out")
    assert names(tmp_path) == ["out"]
    assert names(tmp_path / "out") == sorted(WRITTEN)
    assert json.loads((tmp_path / "out/summary.json").read_text())["completed"] == 1
    requests = pd.read_csv(tmp_path / "out/requests.csv")
    assert requests["first_token_s"].tolist()[0] == 0.3
    assert requests["rejected"].tolist()[1] == "prompt too long, by far"
    assert len(pd.read_csv(tmp_path / "out/steps.csv")) == 2
    assert (tmp_path / "out/latency.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "out/timeline.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("_plain_figures")
def test_files_that_are_written_in_parts_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header once, and every row once."""
    write(tmp_path / "whole")
    monkeypatch.setattr(folder_module, "ROWS_AT_ONCE", 1)
    write(tmp_path / "parts")
    for name in ("requests.csv", "steps.csv"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_the_same_run_writes_the_same_bytes(tmp_path: Path) -> None:
    """Plots too: no date, no version in them."""
    write(tmp_path / "one")
    write(tmp_path / "two")
    assert [(tmp_path / "one" / name).read_bytes() for name in WRITTEN] == [
        (tmp_path / "two" / name).read_bytes() for name in WRITTEN
    ]


@pytest.mark.usefixtures("_plain_figures")
def test_an_earlier_run_is_replaced_whole(tmp_path: Path) -> None:
    """The second run's figures stand where the first one's stood."""
    write(tmp_path / "out")
    write(tmp_path / "out", make_records(Life(rejected="too long")))
    assert json.loads((tmp_path / "out/summary.json").read_text())["completed"] == 0
    assert names(tmp_path) == ["out"]


@pytest.mark.usefixtures("_plain_figures")
def test_a_failing_write_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full when the last file is due: the earlier results stand untouched, no half-written folder stays."""

    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    write(tmp_path / "out")
    before = (tmp_path / "out/summary.json").read_bytes()
    monkeypatch.setattr(folder_module, "save", full_disk)
    with pytest.raises(ConfigError, match="No space left on device"):
        write(tmp_path / "out", make_records(Life(rejected="too long")))
    assert (tmp_path / "out/summary.json").read_bytes() == before
    assert names(tmp_path) == ["out"]


def test_a_folder_with_foreign_files_is_left_alone(tmp_path: Path) -> None:
    """Somebody's work is never overwritten, and the message names the file that gave it away."""
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match=r"already holds `thesis\.tex`"):
        check_folder(tmp_path)
    with pytest.raises(ConfigError, match=r"already holds `thesis\.tex`"):
        write(tmp_path)
    assert names(tmp_path) == ["thesis.tex"]


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    """--out names a folder."""
    (tmp_path / "out").write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        check_folder(tmp_path / "out")


def test_a_run_without_steps_still_has_its_plots(tmp_path: Path) -> None:
    """Nothing ran: panels say so instead of failing."""
    write(tmp_path / "out", make_records(Life(rejected="too long")))
    assert names(tmp_path / "out") == sorted(WRITTEN)


def test_a_run_of_single_tokens_still_has_its_plots(tmp_path: Path) -> None:
    """Gaps that occurred never are no sample."""
    life = Life(first_scheduled_s=0.0, first_token_s=0.3, finish_s=0.3, output_tokens=1)
    write(tmp_path / "out", make_records(life, steps=(Step(0.0, 0.3),), itl_s={0.3: 0}))
    assert names(tmp_path / "out") == sorted(WRITTEN)
