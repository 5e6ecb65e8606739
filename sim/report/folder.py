"""A run's results as a folder of files, written whole or not at all."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sim.errors import ConfigError
from sim.metrics.columns import Columns
from sim.report.plots import latency_plot, timeline_plot
from sim.serving.records import Records

FILES = ("summary.json", "requests.csv", "steps.csv", "latency.png", "timeline.png")


def check_folder(folder: Path) -> None:
    """Raises ConfigError unless `folder` is new, empty, or holds only an earlier run's results."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ConfigError(f"--out {folder} is a file, but results are a folder; name another place.")
    foreign = sorted({path.name for path in folder.iterdir()} - set(FILES))
    if foreign:
        raise ConfigError(
            f"--out {folder} already holds `{foreign[0]}`, which is not a result of Servecast; name a new or empty folder."
        )


def write_folder(
    folder: Path, summary: Mapping[str, Any], requests: Columns, steps: Columns, records: Records, *, title: str
) -> None:
    """Write all result files and then put them in place at once, instead of an earlier run's.

    Raises ConfigError where `check_folder` does or where the folder cannot be written.
    """
    check_folder(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
            written = Path(scratch, "results")
            written.mkdir()
            _write_files(written, summary, requests, steps)
            latency_plot(written / "latency.png", records, title=title)
            timeline_plot(written / "timeline.png", records, num_gpu_blocks=summary["num_gpu_blocks"], title=title)
            if folder.exists():
                folder.rename(Path(scratch, "earlier"))
            written.rename(folder)
    except OSError as error:
        raise ConfigError(f"--out {folder} cannot be written: {error.strerror}; name another place.") from error


def _write_files(folder: Path, summary: Mapping[str, Any], requests: Columns, steps: Columns) -> None:
    text = json.dumps(summary, indent=2, allow_nan=False) + "\n"
    (folder / "summary.json").write_text(text, encoding="utf-8")
    _write_csv(folder / "requests.csv", requests)
    _write_csv(folder / "steps.csv", steps)


def _write_csv(path: Path, columns: Columns) -> None:
    """Times to the nanosecond, an empty field where there is no value."""
    import pandas as pd

    pd.DataFrame(columns).round(9).to_csv(path, index=False, lineterminator="\n")
