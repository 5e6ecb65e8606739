"""The page of a simulation."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sim.cluster.records import ClusterRecords
from sim.fleet import DeployedFleet, DeployedPool
from sim.metrics.bottlenecks import QUEUES, RESOURCES
from sim.metrics.breakdown import Breakdown
from sim.metrics.distributions import distributions
from sim.metrics.over_time import ReplicasOverTime
from sim.metrics.stories import Story as Life
from sim.metrics.stories import slowest_to_begin, slowest_to_end, told
from sim.metrics.timeline import Timeline
from sim.report.breakdown import HEADER, operator_rows
from sim.report.console import FIGURES
from sim.report.figures.fleet import fleet_figures
from sim.report.figures.latency import TITLES, latency_figure
from sim.report.figures.over_time import timeline_figures
from sim.report.html import engine_table
from sim.report.page.blocks import (
    Bars,
    Block,
    Card,
    Cards,
    Chart,
    Charts,
    Facts,
    Figure90,
    Figures,
    Grid,
    Page,
    Prose,
    Section,
    Share,
    Stories,
    Story,
)
from sim.report.page.shared import (
    card,
    confidence_blocks,
    cost_cards,
    interval,
    memory_blocks,
    provenance,
    title_lines,
)
from sim.report.parts import POOLS, SLO_CLASSES, parts_table, replica_columns, stage_columns
from sim.report.run_title import run_title
from sim.report.tables import Table, cell_text
from sim.workload.trace import Trace

Summary = Mapping[str, Any]
NUM_STORIES = 6


class Run(NamedTuple):
    """What a page tells of; `seen` are the records by the clock that was asked for, `over_time` where any step ran, `replicas` where there are several, `breakdown` where it was asked for."""

    summary: Summary
    fleet: DeployedFleet
    records: ClusterRecords
    seen: ClusterRecords
    trace: Trace
    over_time: Timeline | None
    replicas: ReplicasOverTime | None = None
    breakdown: Breakdown | None = None


def run_page(run: Run) -> Page:
    """Headlines first, then what lies behind them, and at the end what it was run with."""
    title, *lines = title_lines(run_title, run.summary)
    sections = [
        Section("overview", "Overview", list(_overview(run.summary))),
        Section("latency", "Latency", list(_latency(run))),
        *([Section("timeline", "Over time", list(_over_time(run.over_time)))] if run.over_time else []),
        Section("limits", "What limits it", list(_limits(run.summary, run.breakdown))),
        Section("requests", "Slowest requests", list(_slowest(run))),
        *([Section("fleet", "Fleet", list(_fleet(run)))] if run.replicas else []),
        *(
            [Section("stages", "Stages", [Grid(parts_table("stage", stage_columns(stages), stages))])]
            if (stages := run.summary.get("stages"))
            else []
        ),
        Section(
            "memory",
            "Memory",
            [block for pool in run.fleet.pools for block in memory_of(pool, run.fleet)],
        ),
        Section("provenance", "Provenance", list(_provenance(run))),
    ]
    return Page("Simulation", title, lines, sections)


def _overview(summary: Summary) -> Iterator[Block]:
    yield Cards(list(_cards(summary)))
    if summary["limits"]["warnings"]:
        yield Prose(summary["limits"]["warnings"], is_warning=True)
    if summary["confidence"].get("intervals"):
        yield Prose(["Below a figure stands its 90 % interval."])
    yield from confidence_blocks(summary["confidence"])
    if summary["notes"]:
        yield Prose(summary["notes"])


def _cards(summary: Summary) -> Iterator[Card]:
    def figure(label: str, key: str, unit: str = "", scale: float = 1) -> Card:
        value = summary[key]
        return card(label, value and value * scale, unit, interval(summary["confidence"], key, scale))

    yield figure("P99 TTFT", "p99_ttft_ms", "ms")
    yield figure("P99 TPOT", "p99_tpot_ms", "ms")
    yield figure("P99 end to end", "p99_e2el_ms", "ms")
    yield figure("Output throughput", "output_throughput", "tok/s")
    yield figure("Request throughput", "request_throughput", "req/s")
    if "slo_attainment" in summary:
        yield figure("Within all limits", "slo_attainment", "%", 100)
    yield Card("Completed", f"{summary['completed']:,}", f"of {summary['arrived']:,}", _unserved(summary))
    yield figure("Peak KV cache usage", "max_kv_cache_usage", "%", 100)
    yield figure("Prefix cache hits", "prefix_cache_hit_rate", "%", 100)
    yield figure("Preemptions", "num_preemptions")
    yield figure("GPU busy", "gpu_busy_fraction", "%", 100)
    yield from cost_cards(summary)


def _unserved(summary: Summary) -> str:
    return ", ".join(f"{summary[name]:,} {name}" for name in ("rejected", "failed", "unfinished") if summary[name])


def _latency(run: Run) -> Iterator[Block]:
    yield _percentiles(run.summary)
    if "slo" in run.summary:
        rows = [(name, run.summary[f"slo_{name}_ms"], limit_ms) for name, limit_ms in run.summary["slo"].items()]
        yield Grid(Table(("limit", "ms", "at most"), rows), "Service-level objectives")
    if "slo_classes" in run.summary:
        classes = run.summary["slo_classes"]
        of_classes = [
            (part["class"], name, part[f"slo_{name}_ms"], limit_ms)
            for part in classes
            for name, limit_ms in part["slo"].items()
        ]
        yield Grid(Table(("class", "limit", "ms", "at most"), of_classes), "Service-level objectives")
        yield Grid(parts_table("class", SLO_CLASSES, classes), "Requests within all limits of their class")
    found = distributions(run.seen.merged)
    yield Charts([Chart(latency_figure(name, one)) for name, one in found.items() if one])


def _percentiles(summary: Summary) -> Figures:
    intervals = ", with 90 % intervals" if summary["confidence"].get("intervals") else ""
    rows = []
    for name, title in TITLES.items():
        keys = [f"{figure}_{name}_ms" for figure in FIGURES.values()]
        told = [Figure90(cell_text(summary[key]), interval(summary["confidence"], key)) for key in keys]
        rows.append((f"{title} ({name.upper()})", told))
    return Figures(f"Percentiles in milliseconds{intervals}", ("", *FIGURES), rows)


def _over_time(found: Timeline) -> Iterator[Block]:
    note = f"Each point is {found.interval_s:g} s: lines are means, shaded areas go from the lowest to the highest value in it."
    yield Prose([note])
    for figure in timeline_figures(found).values():
        yield Chart(figure, linked=True)


def _limits(summary: Summary, breakdown: Breakdown | None) -> Iterator[Block]:
    limits = summary["limits"]
    yield Prose([f"{limits['text'][:1].upper()}{limits['text'][1:]}."])
    if limits["busy"]:
        yield Bars("What the GPUs' busy time goes with", _shares(limits["busy"], RESOURCES))
    yield Bars("Time in which requests waited for", _shares(limits["queued"], QUEUES))
    cliffs = [cliff["text"] for cliff in limits["graph_cliffs"]]
    if cliffs:
        yield Prose(["CUDA graphs: " + " ".join(cliffs)])
    if breakdown:
        rows = list(operator_rows(breakdown.operators))
        yield Grid(Table(HEADER, rows), "Busy time by operator")
    yield Facts("Engine", [(str(label), cell_text(value)) for label, value in engine_table(summary).rows])


def _shares(found: Mapping[str, float], labels: Mapping[str, str]) -> list[Share]:
    return [
        Share(label, min(1.0, found[name]), f"{found[name]:.1%}") for name, label in labels.items() if name in found
    ]


def _slowest(run: Run) -> Iterator[Block]:
    begin = slowest_to_begin(run.trace, run.records, NUM_STORIES)
    if not begin:
        yield Prose(["No request was completed."])
        return
    if run.summary.get("clock") == "client":
        yield Prose(["Phases are by the engine's clock; its front end keeps the client waiting besides."])
    yield Stories("The longest times to first token", list(map(_story, begin)))
    yield Stories("The longest from end to end", list(map(_story, slowest_to_end(run.trace, run.records, NUM_STORIES))))


def _story(life: Life) -> Story:
    return Story(
        f"Request {life.request_id}",
        f"TTFT {told(life.ttft_s)}, end to end {told(life.e2el_s)}",
        life.text,
        [
            Share(name, part_s / life.e2el_s if life.e2el_s else 0.0, told(part_s))
            for name, part_s in (("queued", life.queue_s), ("prefill", life.prefill_s), ("decode", life.decode_s))
        ],
    )


def _fleet(run: Run) -> Iterator[Block]:
    summary = run.summary
    if "pools" in summary:
        yield Grid(parts_table("pool", POOLS, summary["pools"]), "Pools")
    yield Grid(parts_table("replica", replica_columns(summary["replicas"]), summary["replicas"]), "Replicas")
    if run.replicas:
        for figure in fleet_figures(run.replicas).values():
            yield Chart(figure, linked=True)


def memory_of(pool: DeployedPool, fleet: DeployedFleet) -> Iterator[Block]:
    """Where the memory of one of the pool's GPUs goes."""
    plan, name = pool.deployment.plan, f"{pool.name} on " if fleet.is_unlike else ""
    yield from memory_blocks(
        f"{name}{pool.deployment.gpu.name}", plan.to_json(), [line._asdict() for line in plan.ledger]
    )


def _provenance(run: Run) -> Sequence[Block]:
    step_times = ", ".join(f"{name} {value}" for name, value in run.summary["step_time"].items())
    asked = run.fleet.asked
    return provenance(
        run.summary, {"Step times": step_times, "Trace format": run.trace.format}, asked.to_json() if asked else None
    )
