"""Answers as folders: JSON, CSV and PNG, written whole or not at all."""

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.errors import ConfigError
from sim.report.search_plots import capacity_plot, pareto_plot, sensitivity_plot

if TYPE_CHECKING:
    import pandas as pd

FIXED_NAMES = ("answer.json", "candidates.csv", "pareto.csv", "sensitivity.csv", "pareto.png", "curve.csv", "curve.png")


def write_optimization(folder: Path, summary: Mapping[str, Any], tables: Mapping[str, "pd.DataFrame"]) -> None:
    """answer.json, a CSV a table, pareto.png and sensitivity-KNOB.png. Raises ConfigError as `check_answer_folder`."""

    def write(scratch: Path) -> None:
        _write_data(scratch, summary, tables)
        pareto_plot(scratch / "pareto.png", summary)
        for knob, points in summary["sensitivity"].items():
            sensitivity_plot(scratch / f"sensitivity-{knob}.png", knob, points, title=f"{summary['model_id']}: {knob}")

    _write_at_once(folder, write)


def write_capacity(folder: Path, summary: Mapping[str, Any], curve: "pd.DataFrame") -> None:
    """answer.json, curve.csv and curve.png. Raises ConfigError as `check_answer_folder`."""

    def write(scratch: Path) -> None:
        _write_data(scratch, summary, {"curve": curve})
        capacity_plot(scratch / "curve.png", summary)

    _write_at_once(folder, write)


def check_answer_folder(folder: Path) -> None:
    """Raises ConfigError unless `folder` is new, empty, or holds only an earlier answer."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--out {folder} is a file, but results are a folder; name another place.")
    names = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    foreign = [name for name in names if name not in FIXED_NAMES and not name.startswith("sensitivity-")]
    if foreign:
        raise ConfigError(
            f"--out {folder} already holds `{foreign[0]}`, which is not an answer of Servecast; name a new or empty folder."
        )


def _write_at_once(folder: Path, write: Callable[[Path], None]) -> None:
    """All files first, then the folder in place of an earlier one."""
    check_answer_folder(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
            written = Path(scratch, "results")
            written.mkdir()
            write(written)
            if folder.exists():
                folder.rename(Path(scratch, "earlier"))
            written.rename(folder)
    except OSError as error:
        raise ConfigError(f"--out {folder} cannot be written: {error.strerror}; name another place.") from error


def _write_data(folder: Path, summary: Mapping[str, Any], tables: Mapping[str, "pd.DataFrame"]) -> None:
    (folder / "answer.json").write_text(json.dumps(summary, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False, lineterminator="\n")
