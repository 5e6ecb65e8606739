"""The pages of a search and of a capacity."""

from collections.abc import Iterator

from sim.report.figures.search import capacity_figures, pareto_figure, sensitivity_figures
from sim.report.fleet_yaml import fleet_yaml
from sim.report.page.blocks import Block, Card, Cards, Chart, Charts, Code, Grid, Page, Prose, Section
from sim.report.page.shared import (
    Summary,
    card,
    confidence_blocks,
    cost_cards,
    interval,
    memory_blocks,
    provenance,
    short,
    title_lines,
)
from sim.report.run_title import search_title
from sim.report.search import (
    advice,
    curve_table,
    describe,
    highest_rate,
    pareto_table,
    rejected,
    sizing,
    verdict,
    winners,
)

LATENCIES = {"P99 TTFT": "p99_ttft_ms", "P99 TPOT": "p99_tpot_ms", "P99 end to end": "p99_e2el_ms"}


def optimization_page(summary: Summary) -> Page:
    """The winner, why it is, and how to run it."""
    title, *lines = title_lines(search_title, summary)
    sections = [
        Section("overview", "Best configuration", list(_best(summary))),
        Section("candidates", "Candidates", list(_candidates(summary))),
        *([Section("sensitivity", "Sensitivity", list(_sensitivity(summary)))] if summary["sensitivity"] else []),
        Section(
            "limits", "What limits it", [Prose([f"{summary['best']['limits']['text']}."]), Prose(list(advice(summary)))]
        ),
        Section("memory", "Memory", list(_memory(summary))),
        Section("provenance", "Provenance", provenance(summary, {}, summary.get("fleet"))),
    ]
    return Page("Search", title, lines, sections)


def _best(summary: Summary) -> Iterator[Block]:
    best = summary["best"]
    metrics, confidence = best["metrics"], best["confidence"]
    yield Cards(
        [
            Card(
                "Score", "-" if best["score"] is None else short(best["score"]), summary["score_unit"], _gain(summary)
            ),
            *_figures(metrics, confidence),
            Card("GPUs", f"{best['num_gpus']:,}"),
            *cost_cards(metrics),
            Card(
                "Tried",
                f"{summary['evaluated']:,}",
                "candidates",
                f"{len(summary['infeasible']):,} cannot serve the trace",
            ),
        ]
    )
    if summary["unservable"]:
        yield Prose([rejected(summary)], is_warning=True)
    yield Prose([verdict(summary)], is_warning=not summary["feasible"])
    yield from _commands(best)
    if "fleet" in best:
        yield Code("Fleet file of the best", fleet_yaml(best["fleet"]).rstrip())


def _gain(summary: Summary) -> str:
    """Against the arguments as given."""
    baseline = summary["baseline"]
    return "as given it cannot serve" if baseline["reason"] else f"as given {short(baseline['score'])}"


def _figures(metrics: Summary, confidence: Summary) -> Iterator[Card]:
    yield card("Output throughput", metrics["output_throughput"], "tok/s", interval(confidence, "output_throughput"))
    for label, key in LATENCIES.items():
        yield card(label, metrics[key], "ms", interval(confidence, key))


def _commands(row: Summary) -> Iterator[Block]:
    yield Code("Serve", row["serve_command"])
    if row["bench_command"]:
        yield Code("Verify on a server", row["bench_command"])


def _candidates(summary: Summary) -> Iterator[Block]:
    yield Chart(
        pareto_figure(summary), "Each candidate that was replayed in full; the pointer shows its configuration."
    )
    yield Grid(winners(summary), "Finalists")
    if summary["pareto"] and len(summary["objective"]) > 1:
        yield Grid(pareto_table(summary), "Pareto set")


def _sensitivity(summary: Summary) -> Iterator[Block]:
    yield Prose([f"One knob at a time, the others as the best has them: {describe(summary['best'])}."])
    for knob in summary["sensitivity"]:
        yield Charts([Chart(figure) for figure in sensitivity_figures(summary, knob).values()])


def _memory(summary: Summary) -> Iterator[Block]:
    memory, gpu = summary["best"]["memory"], summary["gpu"]
    plans = memory if "fleet" in summary["best"] else {str(gpu): memory}
    for name, plan in plans.items():
        yield from memory_blocks(name, plan, plan["ledger"])


def capacity_page(summary: Summary) -> Page:
    """The highest rate, what it means, and latency against rate."""
    title, *lines = title_lines(search_title, summary)
    sections = [
        Section("overview", "Capacity", list(_capacity(summary))),
        Section("curve", "Latency against rate", list(_rates(summary))),
        Section(
            "provenance", "Provenance", provenance(summary, {}, summary.get("fleet") if "pools" in summary else None)
        ),
    ]
    return Page("Capacity", title, lines, sections)


def _capacity(summary: Summary) -> Iterator[Block]:
    metrics = summary["metrics"]
    if metrics:
        yield Cards(
            [
                card(
                    "Highest rate",
                    summary["max_request_rate"],
                    "requests/s",
                    f"first to break: {summary['limited_by']}",
                ),
                card("At a time", summary["concurrent_requests"], "requests"),
                *_figures(metrics, summary["confidence"]),
                Card("GPUs", f"{summary['num_gpus']:,}"),
                *cost_cards(metrics),
            ]
        )
    if summary["unservable"]:
        yield Prose([rejected(summary)], is_warning=True)
    yield Prose([highest_rate(summary)], is_warning=metrics is None)
    if summary["sizing"]:
        yield Prose([sizing(summary)])
    yield from confidence_blocks(summary["confidence"])
    if metrics:
        yield from _commands(summary)


def _rates(summary: Summary) -> Iterator[Block]:
    yield Charts([Chart(figure) for figure in capacity_figures(summary).values()])
    yield Grid(curve_table(summary), "By rate")
