"""A run's results as a folder of files, written whole or not at all."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sim.metrics.columns import Columns
from sim.report.plots import latency_plot, timeline_plot
from sim.report.whole_folder import check_replaceable, replacing, write_json
from sim.serving.records import Records

FILES = ("summary.json", "requests.csv", "steps.csv", "latency.png", "timeline.png")


def check_folder(folder: Path) -> None:
    """Raises ConfigError unless `folder` is new, empty, or holds only an earlier run's results."""
    check_replaceable(folder, "a result", lambda name: name in FILES)


def write_folder(
    folder: Path, summary: Mapping[str, Any], requests: Columns, steps: Columns, records: Records, *, title: str
) -> None:
    """Write all result files and then put them in place at once, instead of an earlier run's.

    Raises ConfigError where `check_folder` does or where the folder cannot be written.
    """
    check_folder(folder)
    with replacing(folder) as written:
        write_json(written / "summary.json", summary)
        _write_csv(written / "requests.csv", requests)
        _write_csv(written / "steps.csv", steps)
        latency_plot(written / "latency.png", records, title=title)
        timeline_plot(written / "timeline.png", records, num_gpu_blocks=summary["num_gpu_blocks"], title=title)


def _write_csv(path: Path, columns: Columns) -> None:
    """Times to the nanosecond, an empty field where there is no value."""
    import pandas as pd

    pd.DataFrame(columns).round(9).to_csv(path, index=False, lineterminator="\n")
