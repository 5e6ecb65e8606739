"""Runs of one load side by side as a folder: JSON, a row of CSV each, and a plot of their main figures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.report.comparison import Compared
from sim.report.page.comparison import Distributions, comparison_page
from sim.report.page.render import write_page
from sim.report.plots import save
from sim.report.whole_folder import check_replaceable, replacing, write_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WHAT = "a comparison"
FILES = ("summary.json", "routers.csv", "routers.png", "choices.csv", "choices.png", "report.html")
PANELS = {
    "tok/s out": "output tokens/s",
    "mean TTFT ms": "mean TTFT (ms)",
    "P99 TTFT ms": "P99 TTFT (ms)",
    "hit %": "prefix cache hits (%)",
}
"""Columns that are drawn, a panel each, with what stands above it."""


def check_comparison_folder(folder: Path) -> None:
    """Raises ConfigError unless `folder` is new, empty, or holds only an earlier comparison."""
    check_replaceable(folder, WHAT, FILES.__contains__)


def write_comparison(
    folder: Path,
    compared: Compared,
    summary: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    distributions: Distributions,
) -> None:
    """The whole summary of each run, the columns of the table, a page and a plot. Raises ConfigError as `check_comparison_folder`."""
    import pandas as pd

    with replacing(folder, WHAT, FILES.__contains__) as written:
        write_json(written / "summary.json", summary)
        pd.DataFrame(rows).round(9).to_csv(written / f"{compared}s.csv", index=False, lineterminator="\n")
        write_page(written / "report.html", comparison_page(compared, summary, rows, distributions))
        save(comparison_figure(compared, rows), written / f"{compared}s.png")


def comparison_figure(compared: Compared, rows: Sequence[Mapping[str, Any]]) -> "Figure":
    """A bar a run in each panel; none where there was nothing to measure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2 * len(PANELS), 1.2 + 0.4 * len(rows)), layout="constrained")
    panels = figure.subplots(1, len(PANELS), sharey=True, squeeze=False)[0]
    names = [row[compared] for row in rows]
    for panel, (column, title) in zip(panels, PANELS.items(), strict=True):
        panel.barh(names, [row.get(column) or 0.0 for row in rows])
        panel.set_title(title)
        panel.set_xlim(left=0)
    panels[0].invert_yaxis()
    return figure
