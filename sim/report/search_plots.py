"""Plots of a search: the effect of each knob on the winner, the candidates, and latency against rate."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sim.metrics.goals import GOALS
from sim.report.plots import BLUE, GREEN, INK, ORANGE, TITLE_WIDTH, VIOLET, panels, say_nothing, scale
from sim.report.run_title import search_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
LONG_LABELS, MOST_LABELS = 90, 16


class Measure(NamedTuple):
    """A figure of a candidate, and its limit where it has one."""

    title: str
    key: str
    limit: float | None = None


def limited(summary: Row) -> list[Measure]:
    """The percentiles that have a limit; under goodput each request is judged instead."""
    if "goodput" in summary.get("objective", ()):
        return []
    return [Measure(f"{name} (ms)", f"slo_{name}_ms", limit_ms) for name, limit_ms in summary["slo"].items()]


def measures(summary: Row) -> list[Measure]:
    """The objective and the limits of the search."""
    goals = _goals(summary)
    limits = limited(summary)
    return [goal for goal in goals if goal.key not in {limit.key for limit in limits}] + limits


def _goals(summary: Row) -> list[Measure]:
    return [_measure(name) for name in summary["objective"]]


def _measure(goal: str) -> Measure:
    return Measure(GOALS[goal].title, GOALS[goal].key)


def breaks_a_limit(row: Row) -> bool:
    """Whether a candidate or a point of a curve is worse than a limit allows."""
    return bool(row["slo_violation"])


def sensitivity_figure(summary: Row, knob: str) -> "Figure":
    """A knob's values against the objective and the limited percentiles; the winner's is ringed, crosses break a limit, and
    what cannot serve has no point.
    """
    points = summary["sensitivity"][knob]
    shown = measures(summary)
    title = f"{knob}: the best configuration with other values\n{search_title(summary, TITLE_WIDTH)}"
    with panels(title, rows=len(shown), columns=1, height_in=1.0 + 2.0 * len(shown)) as (figure, axes):
        for axis, measure in zip(axes, shown, strict=True):
            _by_value(axis, points, measure)
        axes[-1].set_xlabel(knob)
        _legend(axes[0])
    return figure


def _by_value(axis: "Axes", points: Sequence[Row], measure: Measure) -> None:
    axis.set_title(measure.title)
    values = [None if point["reason"] else point["metrics"].get(measure.key) for point in points]
    found = [(place, value) for place, value in enumerate(values) if value is not None]
    axis.plot([place for place, _ in found], [value for _, value in found], "-", color=GREEN, linewidth=1.4)
    breaks = {place for place, _ in found if breaks_a_limit(points[place])}
    _points(axis, [at for at in found if at[0] not in breaks], "o", GREEN, None)
    _points(axis, [at for at in found if at[0] in breaks], "x", ORANGE, "breaks a limit")
    winner = [at for at in found if points[at[0]]["is_winner"]]
    if winner:
        axis.plot(*winner[0], "o", color=VIOLET, markersize=11, fillstyle="none", label="chosen")
    for place, point in enumerate(points):
        if point["reason"] is not None:
            axis.axvspan(place - 0.4, place + 0.4, color=ORANGE, alpha=0.12, linewidth=0)
    if measure.limit is not None:
        axis.axhline(measure.limit, color=ORANGE, linewidth=1.0, linestyle="--", label="limit")
    _label_values(axis, [value_label(point["value"]) for point in points])
    highest = max((value for _, value in found), default=1.0)
    if measure.limit is not None and measure.limit < 2 * highest:
        highest = max(highest, measure.limit)
    axis.set_ylim(0, 1.1 * highest or 1.0)


def _label_values(axis: "Axes", labels: list[str]) -> None:
    """As many labels as there is room for, slanted if they are long."""
    every = -(-len(labels) // MOST_LABELS)
    shown = labels[::every]
    is_long = sum(map(len, shown)) + 2 * len(shown) > LONG_LABELS
    slant: dict[str, Any] = {"rotation": 25, "horizontalalignment": "right"} if is_long else {}
    axis.set_xticks(range(0, len(labels), every), shown, **slant)
    axis.set_xlim(-0.5, len(labels) - 0.5)


def value_label(value: Any) -> str:
    """A knob's value below its axis."""
    if value is None:
        return "default"
    if isinstance(value, list | tuple):
        return f"{len(value)} up to {value[-1]}"
    return str(value)


def pareto_figure(summary: Row) -> "Figure":
    """The first goal against the second, or against the first limited percentile: all candidates replayed in full, those
    that break a limit apart from the others, the Pareto set and the best.
    """
    in_full = [one for one in summary["candidates"] if one["feasible"] and one["share"] == 1.0]
    broken = [one for one in in_full if breaks_a_limit(one)]
    kept = [one for one in in_full if one not in broken]
    across, up = weighed(summary)
    with panels(search_title(summary, TITLE_WIDTH), rows=1, columns=1, height_in=5.0) as (figure, (axis,)):
        axis.set_xlabel(across.title)
        axis.set_ylabel(up.title)
        _scatter(axis, (across, up), broken, "x", ORANGE, "breaks a limit")
        _scatter(axis, (across, up), kept, "o", INK, "candidate")
        pareto = [one for one in summary["pareto"] if not breaks_a_limit(one)]
        _scatter(axis, (across, up), pareto, "D", GREEN, "Pareto set")
        best = [one for one in in_full if is_same(one, summary["best"])]
        if summary["feasible"]:
            _scatter(axis, (across, up), best, "*", VIOLET, "best")
        else:
            _scatter(axis, (across, up), best, "s", ORANGE, "nearest, breaks a limit")
        if across.limit is not None:
            axis.axvline(across.limit, color=ORANGE, linewidth=1.0, linestyle="--", label="limit")
        _legend(axis)
    return figure


def is_same(one: Row, other: Row) -> bool:
    """Whether two rows are of one configuration."""
    return all(one.get(name) == other.get(name) for name in ("engine", "replicas", "router", "knobs"))


def weighed(summary: Row) -> tuple[Measure, Measure]:
    """The figures that candidates are compared by, on the horizontal and the vertical axis."""
    first, *others = _goals(summary)
    by_default = _measure("throughput" if first == _measure("latency") else "latency")
    across = next((one for one in (*others, *limited(summary), by_default) if one.key != first.key), by_default)
    return across, first


def _scatter(
    axis: "Axes", of: tuple[Measure, Measure], rows: Sequence[Row], marker: str, colour: str, label: str
) -> None:
    across, up = of
    places = [(row["metrics"].get(across.key), row["metrics"].get(up.key)) for row in rows]
    _points(axis, [at for at in places if None not in at], marker, colour, label, size={"*": 12, "s": 9}.get(marker, 5))


def _points(
    axis: "Axes", places: Sequence[tuple[Any, Any]], marker: str, colour: str, label: str | None, size: int = 6
) -> None:
    """Draws the points; without any, also no entry in the legend."""
    if places:
        x, y = zip(*places, strict=True)
        fill = "none" if marker == "s" else "full"
        axis.plot(
            x, y, marker, color=colour, label=label, alpha=0.85, markersize=size, fillstyle=fill, linestyle="none"
        )


def _legend(axis: "Axes") -> None:
    """Each label once; no legend where there is none."""
    handles, labels = axis.get_legend_handles_labels()
    by_label = dict(zip(labels, handles, strict=True))
    if by_label:
        axis.legend(by_label.values(), by_label.keys())


def capacity_figure(summary: Row) -> "Figure":
    """Each limited percentile against the request rate, its limit, the highest rate that keeps all, and the knee."""
    shown = limited(summary)
    title = search_title(summary, TITLE_WIDTH)
    with panels(title, rows=len(shown), columns=1, height_in=1.0 + 2.4 * len(shown)) as (figure, axes):
        for axis, name, measure in zip(axes, summary["slo"], shown, strict=True):
            axis.set_title(measure.title)
            _against_rate(axis, summary, name, measure)
        _legend(axes[0])
        axes[-1].set_xlabel("requests a second")
    return figure


def _against_rate(axis: "Axes", summary: Row, name: str, measure: Measure) -> None:
    found = [(row["request_rate"], row[name], row["keeps_limits"]) for row in summary["curve"] if row[name] is not None]
    if not found:
        say_nothing(axis, "nothing was measured at any rate")
        return
    rates, values, _ = zip(*found, strict=True)
    axis.plot(rates, values, "-", color=BLUE, linewidth=1.4)
    _points(axis, [(rate, value) for rate, value, keeps in found if keeps], "o", BLUE, "keeps all limits")
    _points(axis, [(rate, value) for rate, value, keeps in found if not keeps], "x", ORANGE, "breaks a limit")
    if measure.limit is not None:
        axis.axhline(measure.limit, color=ORANGE, linewidth=1.0, linestyle="--", label="limit")
        scale(axis, "y", min(*values, measure.limit), max(*values, measure.limit))
    _mark(axis, summary["max_request_rate"], VIOLET, "capacity")
    _mark(axis, summary["knee_request_rate"], GREEN, "knee")


def _mark(axis: "Axes", rate: float | None, colour: str, label: str) -> None:
    if rate is not None:
        axis.axvline(rate, color=colour, linewidth=1.2, linestyle=":", label=label)
