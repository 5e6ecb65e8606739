"""Two runs of one load side by side."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sim.metrics.bottlenecks import QUEUES, RESOURCES
from sim.metrics.distributions import distributions
from sim.report.figures.over_time import timeline_figures
from sim.report.figures.theme import Figure
from sim.report.page.blocks import Block, Chart, Charts, Figure90, Figures, Grid, Prose, Section, Stack
from sim.report.page.comparison import overlaid
from sim.report.page.run import Run, memory_of
from sim.report.page.shared import interval, short
from sim.report.side_by_side import Row, change_text
from sim.report.tables import Table

HEADLINES = {
    "output_throughput": ("Output throughput (tok/s)", 1),
    "request_throughput": ("Request throughput (req/s)", 1),
    "slo_attainment": ("Within all limits (%)", 100),
    "median_ttft_ms": ("Median TTFT (ms)", 1),
    "p99_ttft_ms": ("P99 TTFT (ms)", 1),
    "median_tpot_ms": ("Median TPOT (ms)", 1),
    "p99_tpot_ms": ("P99 TPOT (ms)", 1),
    "p99_itl_ms": ("P99 ITL (ms)", 1),
    "median_e2el_ms": ("Median end to end (ms)", 1),
    "p99_e2el_ms": ("P99 end to end (ms)", 1),
    "completed": ("Completed requests", 1),
    "num_preemptions": ("Preemptions", 1),
    "max_kv_cache_usage": ("Peak KV cache usage (%)", 100),
    "prefix_cache_hit_rate": ("Prefix cache hits (%)", 100),
    "gpu_busy_fraction": ("GPU busy (%)", 100),
    "gpu_hours": ("GPU hours", 1),
    "usd_per_million_output_tokens": ("USD per million output tokens", 1),
}
"""Names of the summary, with what they are called and their scale."""


def two_runs(runs: Mapping[str, Run], rows: Sequence[Row]) -> list[Section]:
    """`rows` are those of `sim.measure.side_by_side`, by the runs' names."""
    return [
        Section("overview", "Side by side", list(_headlines(runs, rows))),
        Section(
            "latency",
            "Latencies over each other",
            list(overlaid({name: distributions(run.records.merged) for name, run in runs.items()})),
        ),
        Section("timeline", "Over time", list(_over_time(runs))),
        Section("limits", "What limits each", list(_limits(runs))),
        Section("memory", "Memory", [block for name, run in runs.items() for block in _memory(name, run)]),
    ]


def _headlines(runs: Mapping[str, Run], rows: Sequence[Row]) -> Iterator[Block]:
    for name, run in runs.items():
        if run.summary["limits"]["warnings"]:
            yield Prose([f"{name}: {warning}" for warning in run.summary["limits"]["warnings"]], is_warning=True)
    first, second = runs
    found = {row["metric"]: row for row in rows}
    shown = [(label, found[key], scale) for key, (label, scale) in HEADLINES.items() if key in found]
    told = [
        (label, [*(_figure(runs[name], row, name, scale) for name in runs), _change(row, second)])
        for label, row, scale in shown
    ]
    title = "Figures with 90 % intervals, and how far the second is from the first: ~ is within noise"
    yield Figures(title, ("", first, second, "change (%)"), told)


def _figure(run: Run, row: Row, name: str, scale: float) -> Figure90:
    value = row["values"].get(name)
    text = "-" if value is None else short(value * scale)
    return Figure90(text, interval(run.summary["confidence"], row["metric"], scale))


def _change(row: Row, name: str) -> Figure90:
    return Figure90(change_text(row["differences"][name]), "")


def _over_time(runs: Mapping[str, Run]) -> Iterator[Block]:
    """Each figure of both, beside each other."""
    found = {name: run.over_time for name, run in runs.items()}
    drawn = {name: timeline_figures(over_time) for name, over_time in found.items() if over_time}
    for kind in dict.fromkeys(kind for figures in drawn.values() for kind in figures):
        yield Charts(
            [Chart(_named(name, figures[kind]), linked=True) for name, figures in drawn.items() if kind in figures]
        )


def _named(name: str, figure: Figure) -> Figure:
    layout = figure["layout"]
    return {**figure, "layout": {**layout, "title": {"text": f"{name}: {layout['title']['text']}"}}}


def _limits(runs: Mapping[str, Run]) -> Iterator[Block]:
    limits = {name: run.summary["limits"] for name, run in runs.items()}
    yield Prose([f"{name}: {found['text']}." for name, found in limits.items()])
    for title, part, labels in (
        ("What the GPUs' busy time goes with (%)", "busy", RESOURCES),
        ("Time in which requests waited for (%)", "queued", QUEUES),
    ):
        rows = [
            (label, *(100 * found[part][key] if key in found[part] else None for found in limits.values()))
            for key, label in labels.items()
        ]
        yield Grid(Table(("", *runs), rows), title)


def _memory(name: str, run: Run) -> Iterator[Block]:
    """The bars alone."""
    for pool in run.fleet.pools:
        yield from (
            replace(block, title=f"{name}: {block.title}")
            for block in memory_of(pool, run.fleet)
            if isinstance(block, Stack)
        )
