"""Finished runs side by side: a table with a row a figure, and a folder with the distributions of their latencies on one plot."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.engine.records import Floats
from sim.report.figures.latency import TITLES
from sim.report.page.blocks import Page
from sim.report.page.render import write_page
from sim.report.plots import BLUE, GREEN, ORANGE, VIOLET, panels, save, say_nothing, scale
from sim.report.tables import Table, aligned
from sim.report.whole_folder import check_replaceable, replacing, write_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WHAT = "a comparison of results"
FILES = ("summary.json", "results.csv", "distributions.png", "report.html")
KNOWN_SHARES = {"median": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
COLOURS = (BLUE, ORANGE, GREEN, VIOLET)
MANY = 100.0  # from here on a figure is shown with one decimal
Row = Mapping[str, Any]


def side_by_side_table(names: Sequence[str], rows: Sequence[Row]) -> str:
    """Each run's figures; of all but the first how far they are from the first's, `~` standing before what is within noise.

    Figures of parts, which have dotted names, are left to the JSON.
    """
    legend = "\n~ within noise" if len(names) > 1 else ""
    table = figures_table(names, rows)
    return f"{aligned(table.header, table.rows)}{legend}"


def figures_table(names: Sequence[str], rows: Sequence[Row]) -> Table:
    """The same as a table."""
    base, *others = names
    header = ["", base, *(column for name in others for column in (name, "change %"))]
    cells = [
        [row["metric"], _figure(row["values"][base]), *(cell for name in others for cell in _against(row, name))]
        for row in rows
        if "." not in row["metric"]
    ]
    return Table(header, cells)


def _against(row: Row, name: str) -> tuple[str, str]:
    return _figure(row["values"][name]), change_text(row["differences"][name])


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.1f}" if abs(value) >= MANY else f"{value:.4g}"


def change_text(found: Mapping[str, Any] | None) -> str:
    """In per cent, with `~` before what is within noise."""
    if found is None or found["verdict"] == "same":
        return "-" if found is None else "0"
    change = "new" if found["change"] is None else f"{found['change'] * 100:+,.1f}"
    return change if found["verdict"] == "differs" else f"~{change}"


def check_side_by_side_folder(folder: Path) -> None:
    """Raises ConfigError unless `folder` is new, empty, or holds only an earlier comparison."""
    check_replaceable(folder, WHAT, FILES.__contains__)


def write_side_by_side(
    folder: Path,
    summary: Mapping[str, Any],
    rows: Sequence[Row],
    samples_ms: Mapping[str, Mapping[str, Floats]],
    page: Page,
) -> None:
    """The object, a line a figure, the page and the plot. Raises ConfigError as `check_side_by_side_folder`."""
    import pandas as pd

    table = [
        {"metric": row["metric"], **row["values"]}
        | {
            f"{name} {key}": found and found[key]
            for name, found in row["differences"].items()
            for key in ("change", "verdict")
        }
        for row in rows
    ]
    with replacing(folder, WHAT, FILES.__contains__) as written:
        write_json(written / "summary.json", summary)
        pd.DataFrame(table).round(9).to_csv(written / "results.csv", index=False, lineterminator="\n")
        write_page(written / "report.html", page)
        save(distributions_figure(rows, samples_ms), written / "distributions.png")


def distributions_figure(rows: Sequence[Row], samples_ms: Mapping[str, Mapping[str, Floats]]) -> "Figure":
    """The cumulative distributions of the four latencies, all runs in each panel; of a run whose requests are not known,
    the percentiles that are.
    """
    values = {row["metric"]: row["values"] for row in rows}
    with panels(" and ".join(samples_ms), rows=2, columns=2, height_in=6.5) as (figure, axes):
        for panel, (latency, title) in zip(axes, TITLES.items(), strict=True):
            panel.set_title(title)
            curves = {name: curve(name, latency, samples, values) for name, samples in samples_ms.items()}
            drawn = {name: curve for name, curve in curves.items() if len(curve[0])}
            for number, (name, (some, shares)) in enumerate(drawn.items()):
                is_known = latency in samples_ms[name]
                panel.plot(
                    some,
                    shares * 100,
                    color=COLOURS[number % len(COLOURS)],
                    drawstyle="steps-post" if is_known else "default",
                    linestyle="-" if is_known else ":",
                    marker="" if is_known else "o",
                    markersize=4,
                    label=name,
                )
            _finish(panel, [some for some, _ in drawn.values()])
    return figure


def curve(
    name: str, latency: str, samples: Mapping[str, Floats], values: Mapping[str, Mapping[str, float | None]]
) -> tuple[Floats, Floats]:
    """Latencies in ms, and the share of samples up to each; of what is known of a run by its percentiles alone, these."""
    if latency in samples:
        some = np.sort(samples[latency])
        return some, np.arange(1, len(some) + 1) / max(1, len(some))
    known = [(values.get(f"{what}_{latency}_ms", {}).get(name), share) for what, share in KNOWN_SHARES.items()]
    points = [(value, share) for value, share in known if value is not None]
    return np.array([value for value, _ in points], dtype=np.float64), np.array([share for _, share in points])


def _finish(panel: "Axes", drawn: Sequence[Floats]) -> None:
    if not drawn:
        say_nothing(panel, "no sample")
        return
    panel.set(xlabel="ms", ylabel="% of samples", ylim=(0, 102))
    scale(panel, "x", min(float(some[0]) for some in drawn), max(float(some[-1]) for some in drawn))
    panel.legend(loc="lower right")
