"""The page of a trace."""

from collections.abc import Mapping

from sim.report.figures.trace import trace_figures
from sim.report.page.blocks import Chart, Charts, Facts, Page, Prose, Section
from sim.workload.trace import Trace


def trace_page(trace: Trace, facts: Mapping[str, str]) -> Page:
    """What is told of it by label, and its figures."""
    sections = [
        Section(
            "overview",
            "Overview",
            [Facts("", list(facts.items())), *([Prose(list(trace.notes))] if trace.notes else [])],
        ),
        Section("figures", "Figures", [Charts([Chart(figure) for figure in trace_figures(trace)])]),
    ]
    return Page("Trace", f"{trace.source}, {len(trace):,} requests", [], sections)
