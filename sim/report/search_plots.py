"""Plots of a search: what each knob does to the winner, what there is to choose from, and latency against rate."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.report.plots import BLUE, GREEN, INK, ORANGE, panels, plain_log_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]


def sensitivity_plot(path: Path, knob: str, points: Sequence[Row], *, title: str) -> None:
    """A knob's values against throughput and P99 latency, the winner's value marked; what cannot serve has no point."""
    labels = [_label(point["value"]) for point in points]
    with panels(path, title, rows=2, columns=1, height_in=5.0) as axes:
        _by_value(axes[0], points, "output_throughput", "output tok/s", GREEN)
        _by_value(axes[1], points, "p99_e2el_ms", "P99 end to end (ms)", BLUE)
        axes[1].set_xlabel(knob)
        for axis in axes:
            axis.set_xticks(range(len(labels)), labels)


def _by_value(axis: "Axes", points: Sequence[Row], key: str, title: str, colour: str) -> None:
    axis.set_title(title)
    found = [(place, point["metrics"][key]) for place, point in enumerate(points) if point["reason"] is None]
    axis.plot([place for place, _ in found], [value for _, value in found], "o-", color=colour, linewidth=1.4)
    for place, point in enumerate(points):
        if point["reason"] is not None:
            axis.axvspan(place - 0.4, place + 0.4, color=ORANGE, alpha=0.12, linewidth=0)
        elif point["is_winner"]:
            axis.plot([place], [point["metrics"][key]], "o", color=ORANGE, markersize=9, fillstyle="none")
    axis.set_xlim(-0.5, len(points) - 0.5)
    axis.set_ylim(0, 1.1 * max((value for _, value in found), default=1.0))


def _label(value: Any) -> str:
    if value is None:
        return "default"
    if isinstance(value, list | tuple):
        return f"{len(value)} up to {value[-1]}"
    return str(value)


def pareto_plot(path: Path, summary: Row) -> None:
    """Throughput per GPU against P99 latency: all candidates replayed in full, the Pareto set and the winner."""
    in_full = [one for one in summary["candidates"] if one["feasible"] and one["share"] == 1.0]
    with panels(path, f"{summary['model_id']} on {summary['gpu']}", rows=1, columns=1, height_in=5.0) as (axis,):
        axis.set_xlabel("P99 end to end (ms)")
        axis.set_ylabel("output tok/s per GPU")
        _scatter(axis, in_full, "o", INK, "candidates")
        _scatter(axis, summary["pareto"], "D", GREEN, "Pareto set")
        best = [one for one in in_full if _same(one, summary["best"])]
        _scatter(axis, best, "*", ORANGE, "best")
        axis.legend()


def _same(one: Row, other: Row) -> bool:
    return bool(one["engine"] == other["engine"] and one["replicas"] == other["replicas"])


def _scatter(axis: "Axes", rows: Sequence[Row], marker: str, colour: str, label: str) -> None:
    x = [row["metrics"]["p99_e2el_ms"] for row in rows]
    y = [row["metrics"]["output_throughput"] / row["num_gpus"] for row in rows]
    axis.plot(x, y, marker, color=colour, label=label, alpha=0.8, markersize=12 if marker == "*" else 5)


def capacity_plot(path: Path, summary: Row) -> None:
    """Each limited percentile against the request rate, its limit, the highest rate that keeps all, and the knee."""
    curve, limits = summary["curve"], summary["slo"]
    title = f"{summary['model_id']} on {summary['gpu']}"
    with panels(path, title, rows=len(limits), columns=1, height_in=1.0 + 2.4 * len(limits)) as axes:
        for axis, (name, limit_ms) in zip(axes, limits.items(), strict=True):
            axis.set_title(f"{name} (ms)")
            found = [(row["request_rate"], row[name]) for row in curve if row[name] is not None]
            axis.plot([rate for rate, _ in found], [value for _, value in found], "o-", color=BLUE, linewidth=1.4)
            axis.axhline(limit_ms, color=ORANGE, linewidth=1.0, linestyle="--", label="limit")
            axis.set_yscale("log")
            plain_log_ticks(axis.yaxis)
            _mark(axis, summary["max_request_rate"], ORANGE, "capacity")
            _mark(axis, summary["knee_request_rate"], GREEN, "knee")
        axes[0].legend()
        axes[-1].set_xlabel("requests a second")


def _mark(axis: "Axes", rate: float | None, colour: str, label: str) -> None:
    if rate is not None:
        axis.axvline(rate, color=colour, linewidth=1.2, linestyle=":", label=label)
