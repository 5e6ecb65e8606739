"""Answers as folders: JSON, CSV and PNG, written whole or not at all."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from sim.report.fleet_yaml import fleet_yaml
from sim.report.page.render import write_page
from sim.report.page.search import capacity_page, optimization_page
from sim.report.plots import save
from sim.report.search_plots import capacity_figure, pareto_figure, sensitivity_figure
from sim.report.whole_folder import check_replaceable, replacing, write_json

if TYPE_CHECKING:
    import pandas as pd

VERIFY = "verify.jsonl"
BEST_FLEET = "best_fleet.yaml"
FIXED_NAMES = (
    "answer.json",
    "candidates.csv",
    "pareto.csv",
    "sensitivity.csv",
    "pareto.png",
    "curve.csv",
    "curve.png",
    VERIFY,
    BEST_FLEET,
    "report.html",
)


WriteLoad = Callable[[Path], None]


def check_answer_folder(folder: Path) -> None:
    """Raises ConfigError unless `folder` is new, empty, or holds only an earlier answer."""
    check_replaceable(folder, "an answer", _is_ours)


def write_optimization(
    folder: Path, summary: Mapping[str, Any], tables: Mapping[str, "pd.DataFrame"], write_load: WriteLoad
) -> None:
    """answer.json, a CSV a table, the load, report.html, pareto.png and sensitivity-KNOB.png; of a fleet best_fleet.yaml too. Raises ConfigError as `check_answer_folder`."""
    with replacing(folder, "an answer", _is_ours) as written:
        _write_data(written, summary, tables)
        write_load(written / VERIFY)
        write_page(written / "report.html", optimization_page(summary))
        save(pareto_figure(summary), written / "pareto.png")
        for knob in summary["sensitivity"]:
            save(sensitivity_figure(summary, knob), written / f"sensitivity-{quote(knob, safe=' ')}.png")
        if "fleet" in summary["best"]:
            text = fleet_yaml(summary["best"]["fleet"])
            (written / BEST_FLEET).write_text(text, encoding="utf-8", newline="\n")


def write_capacity(
    folder: Path, summary: Mapping[str, Any], curve: "pd.DataFrame", write_load: WriteLoad | None
) -> None:
    """answer.json, curve.csv, the load, if there is one, report.html and curve.png. Raises ConfigError as `check_answer_folder`."""
    with replacing(folder, "an answer", _is_ours) as written:
        _write_data(written, summary, {"curve": curve})
        if write_load:
            write_load(written / VERIFY)
        write_page(written / "report.html", capacity_page(summary))
        save(capacity_figure(summary), written / "curve.png")


def _is_ours(name: str) -> bool:
    return name in FIXED_NAMES or name.startswith("sensitivity-")


def _write_data(folder: Path, summary: Mapping[str, Any], tables: Mapping[str, "pd.DataFrame"]) -> None:
    write_json(folder / "answer.json", summary)
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False, lineterminator="\n")
