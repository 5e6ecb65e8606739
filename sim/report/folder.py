"""A run's results as a folder of files, written whole or not at all."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.metrics.columns import Columns
from sim.report.plots import save
from sim.report.whole_folder import check_replaceable, replacing, write_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS_AT_ONCE = 1 << 18
FILES = (
    "summary.json",
    "requests.csv",
    "steps.csv",
    "replicas.csv",
    "latency.png",
    "timeline.png",
    "roofline.png",
    "report.html",
    "timeline.json",
)


def check_folder(folder: Path) -> None:
    """Raises ConfigError unless `folder` is new, empty, or holds only an earlier run's results."""
    check_replaceable(folder, "a result", FILES.__contains__)


def write_folder(
    folder: Path,
    summary: Mapping[str, Any],
    tables: Mapping[str, Columns],
    plots: Mapping[str, "Figure"],
    others: Mapping[str, Callable[[Path], None]],
) -> None:
    """Write all result files and then put them in place at once, instead of an earlier run's; by file name tables, plots, and what
    writes itself.

    Raises ConfigError where `check_folder` does or where the folder cannot be written.
    """
    with replacing(folder, "a result", FILES.__contains__) as written:
        write_json(written / "summary.json", summary)
        for name, columns in tables.items():
            _write_csv(written / name, columns)
        for name, figure in plots.items():
            save(figure, written / name)
        for name, write in others.items():
            write(written / name)


def _write_csv(path: Path, columns: Columns) -> None:
    """Times to the nanosecond, an empty field where there is no value. Written in parts, for there may be millions of steps."""
    import pandas as pd

    num_rows = len(next(iter(columns.values())))
    with path.open("w", encoding="utf-8", newline="") as file:
        for first in range(0, max(1, num_rows), ROWS_AT_ONCE):
            part = {name: column[first : first + ROWS_AT_ONCE] for name, column in columns.items()}
            pd.DataFrame(part).round(9).to_csv(file, index=False, header=first == 0, lineterminator="\n")
