"""The operators of a run's steps as a table, and on the GPU's roofline."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.metrics.breakdown import Breakdown, OperatorRow
from sim.report.plots import BLUE, GRID, INK, ORANGE, panels
from sim.report.tables import aligned
from sim.units import GIGA, TERA

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADER = ("operator", "% of busy time", "% for prompts", "bound", "TFLOP/s", "GB/s", "FLOPs/byte")


def breakdown_table(found: Breakdown) -> str:
    """A row an operator; rates are those of one GPU while it runs."""
    return aligned(HEADER, list(operator_rows(found.operators)))


def breakdown_json(found: Breakdown) -> list[dict[str, Any]]:
    """The same, under their names."""
    return [row._asdict() | {"arithmetic_intensity": row.arithmetic_intensity} for row in found.operators]


def operator_rows(operators: Iterable[OperatorRow]) -> Iterator[tuple[object, ...]]:
    """The cells of the table."""
    for row in operators:
        rates = (row.flops_per_s and row.flops_per_s / TERA, row.bytes_per_s and row.bytes_per_s / GIGA)
        shares = (100 * row.busy_share, 100 * row.prefill_share)
        cells = (f"{value:,.1f}" if value else "-" for value in (*rates, row.arithmetic_intensity))
        yield (row.operator, *(f"{share:.1f}" for share in shares), row.bound, *cells)


def _labels(operators: Sequence[OperatorRow]) -> Iterator[tuple[str, tuple[float, float]]]:
    """Operators of one intensity have one label, at the first of them."""
    alike: dict[str, list[OperatorRow]] = {}
    for row in operators:
        alike.setdefault(f"{row.arithmetic_intensity:.2g}", []).append(row)
    for rows in alike.values():
        first = rows[0]
        yield (
            ", ".join(row.operator for row in rows),
            (first.arithmetic_intensity or 1.0, (first.flops_per_s or 1.0) / TERA),
        )


def roofline_figure(found: Breakdown, *, title: str) -> "Figure":
    """Sampled steps and operators under what the GPU can do at their arithmetic intensity."""
    with panels(title, rows=1, columns=1, height_in=5.0) as (figure, (axes,)):
        operators = [row for row in found.operators if row.arithmetic_intensity and row.flops_per_s]
        intensities = [*found.steps[:, 0].tolist(), *(row.arithmetic_intensity or 1.0 for row in operators)]
        ridge = found.peak_flops / found.peak_bytes_per_s
        reach = np.geomspace(min(*intensities, ridge) / 2, max(*intensities, ridge) * 2, 200)
        roof = np.minimum(reach * found.peak_bytes_per_s, found.peak_flops) / TERA
        axes.loglog(reach, roof, color=INK, linewidth=1.5)
        axes.axvline(ridge, color=GRID, linewidth=1.0)
        axes.scatter(found.steps[:, 0], found.steps[:, 1] / TERA, s=12, color=BLUE, alpha=0.5, label="steps")
        axes.scatter(
            [row.arithmetic_intensity or 1.0 for row in operators],
            [(row.flops_per_s or 0.0) / TERA for row in operators],
            s=[20 + 400 * row.busy_share for row in operators],
            color=ORANGE,
            label="operators, by share of the time",
        )
        for names, place in _labels(operators):
            axes.annotate(names, place, xytext=(10, -12), textcoords="offset points", fontsize=8)
        axes.set_xlabel("arithmetic intensity (FLOPs a byte)")
        axes.set_ylabel("TFLOP/s of one GPU")
        axes.legend(loc="lower right")
    return figure
