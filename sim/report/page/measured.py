"""The pages of measured runs: how far replays are off, and what a calibration changed."""

from collections.abc import Sequence

from sim.report.figures.comparison import scatter_figure
from sim.report.page.blocks import Block, Chart, Grid, Page, Prose, Section
from sim.report.page.shared import Summary
from sim.report.tables import Table
from sim.report.validation import METRICS, report_blocks, runs_title


def validation_page(validation: Summary) -> Page:
    """Each figure of each run, errors by metric and by group, and measured against predicted."""
    scatter = scatter_figure(validation, METRICS)
    blocks: list[Block] = [Chart(scatter)] if scatter else []
    blocks += [
        Grid(block) if isinstance(block, Table) else Prose([block], is_warning=True)
        for block in report_blocks(validation)
    ]
    title = runs_title(validation).replace("\n", " ")
    return Page("Validation", title, [], [Section("overview", "How far the forecast is off", blocks)])


def calibration_page(title: str, verdict: str, tables: Sequence[Table]) -> Page:
    """The verdict, the factors and the errors before and after."""
    blocks: list[Block] = [Prose([f"{verdict}."]), *map(Grid, tables)]
    return Page("Calibration", title, [], [Section("overview", "What was fitted, and whether it helps", blocks)])
