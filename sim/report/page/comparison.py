"""The pages of runs side by side: simulated with choices, or finished before."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sim.engine.records import Floats
from sim.metrics.distributions import Distribution, distribution
from sim.report.comparison import Compared
from sim.report.figures.comparison import bars_figure
from sim.report.figures.latency import TITLES, overlaid_figure
from sim.report.page.blocks import Block, Chart, Charts, Grid, Page, Prose, Section
from sim.report.page.shared import Summary, confidence_blocks, provenance, title_lines
from sim.report.run_title import run_title
from sim.report.side_by_side import Row, curve, figures_table
from sim.report.tables import Table
from sim.units import MS

Distributions = Mapping[str, Mapping[str, Distribution | None]]
"""By run, and then by latency."""
MOST_OVERLAID = 7
"""More lines are not told apart."""


def comparison_page(compared: Compared, summary: Summary, rows: Sequence[Row], found: Distributions) -> Page:
    """A row and a bar for each run of one load, and their latencies over each other."""
    runs = summary[f"{compared}s"]
    each = {"fleet": {**runs[0]["fleet"], "router": "each router"}} if compared == "router" else {}
    title, *lines = title_lines(run_title, {**runs[0], **each})
    sections = [
        Section("overview", "Side by side", list(_side_by_side(compared, summary, rows))),
        Section("latency", "Latencies over each other", list(overlaid(found))),
        Section(
            "limits",
            "What limits each",
            [Grid(Table((compared, ""), [(run[compared], run["limits"]["text"]) for run in runs]))],
        ),
        Section("provenance", "Provenance", provenance(runs[0], {}, None)),
    ]
    return Page("Comparison", title, lines, sections)


def _side_by_side(compared: Compared, summary: Summary, rows: Sequence[Row]) -> Iterator[Block]:
    names = list(rows[0])
    yield Grid(Table(names, [tuple(row.values()) for row in rows]))
    refused = [f"{name} did not run: {reason}" for name, reason in summary.get("refused", {}).items()]
    if refused:
        yield Prose(refused, is_warning=True)
    drawn = [name for name in names[1:] if any(row[name] for row in rows)]
    yield Charts([Chart(bars_figure(rows, compared, name)) for name in drawn])
    yield from confidence_blocks(summary[f"{compared}s"][0]["confidence"])


def overlaid(found: Distributions) -> Iterator[Block]:
    """A chart for each latency, with the runs that have it."""
    shown = dict(list(found.items())[:MOST_OVERLAID])
    if len(found) > len(shown):
        yield Prose([f"The first {len(shown)} of {len(found)} runs."])
    charts = []
    for latency in TITLES:
        known = {name: one for name, of in shown.items() if (one := of.get(latency))}
        if known:
            charts.append(Chart(overlaid_figure(latency, known)))
    yield Charts(charts)


def results_page(summary: Summary, samples_ms: Mapping[str, Mapping[str, Floats]]) -> Page:
    """Every figure of finished runs, what is asserted of them, and their latencies over each other."""
    names, rows = list(samples_ms), summary["metrics"]
    table = figures_table(names, rows)
    note = "Changes are against the first; those with ~ are within noise." if len(names) > 1 else ""
    sections = [
        *([Section("assertions", "Assertions", [_asserted(summary["assertions"])])] if summary["assertions"] else []),
        Section("latency", "Latencies over each other", list(overlaid(_known(rows, samples_ms)))),
        Section("figures", "Every figure", [Grid(table, note=note)]),
    ]
    kinds = ", ".join(f"{run['name']}: {run['kind']}" for run in summary["results"])
    return Page("Results side by side", " and ".join(names), [kinds], sections)


def _asserted(found: Sequence[Mapping[str, Any]]) -> Grid:
    rows = [
        (one["assert"], one["run"], "holds" if one["holds"] else "FAILS", one["value"], one["bound"]) for one in found
    ]
    return Grid(Table(("assertion", "run", "", "value", "bound"), rows))


def _known(
    rows: Sequence[Row], samples_ms: Mapping[str, Mapping[str, Floats]]
) -> dict[str, dict[str, Distribution | None]]:
    values = {row["metric"]: row["values"] for row in rows}
    return {
        name: {latency: _distribution(name, latency, samples, values) for latency in TITLES}
        for name, samples in samples_ms.items()
    }


def _distribution(
    name: str, latency: str, samples: Mapping[str, Floats], values: Mapping[str, Mapping[str, float | None]]
) -> Distribution | None:
    """Of the samples; where only percentiles are known, these."""
    if latency in samples:
        return distribution(samples[latency] * MS)
    known_ms, shares = curve(name, latency, samples, values)
    return Distribution(known_ms * MS, shares) if len(known_ms) else None
