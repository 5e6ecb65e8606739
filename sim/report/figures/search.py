"""A search: its candidates and its Pareto set, and what each knob does; and latency against the request rate."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sim.report.figures.theme import (
    BLUE,
    GREEN,
    GREY,
    PURPLE,
    VERMILLION,
    Figure,
    Trace,
    across,
    axis,
    figure,
    line,
    numbers,
    points,
)
from sim.report.search import describe
from sim.report.search_plots import Measure, Row, breaks_a_limit, is_same, limited, measures, value_label, weighed

BREAKS, LIMIT = "breaks a limit", "limit"


def pareto_figure(summary: Row) -> Figure:
    """All candidates that were replayed in full by two figures: what breaks a limit, the Pareto set, and the best."""
    across_, up = weighed(summary)
    in_full = [one for one in summary["candidates"] if one["feasible"] and one["share"] == 1.0]
    kept = [one for one in in_full if not breaks_a_limit(one)]
    pareto = [one for one in summary["pareto"] if not breaks_a_limit(one)]
    best = [one for one in in_full if is_same(one, summary["best"])]
    chosen = ("best", PURPLE, "star") if summary["feasible"] else ("nearest, breaks a limit", VERMILLION, "square-open")
    groups = (
        (list(filter(breaks_a_limit, in_full)), BREAKS, VERMILLION, "x"),
        ([one for one in kept if one not in pareto], "candidate", GREY, "circle"),
        (pareto, "Pareto set", GREEN, "diamond"),
        (best, *chosen),
    )
    traces = [trace for rows, *how in groups for trace in _scatter(rows, across_, up, *how)]
    limits = [] if across_.limit is None else [across(across_.limit, VERMILLION, "x")]
    return figure(
        traces, "Candidates", x=axis(across_.title), y=axis(up.title), height=380, shapes=limits, hovermode="closest"
    )


def _scatter(rows: Iterable[Row], x: Measure, y: Measure, label: str, colour: str, symbol: str) -> Iterator[Trace]:
    placed = [(row["metrics"].get(x.key), row["metrics"].get(y.key), describe(row)) for row in rows]
    placed = [place for place in placed if None not in place]
    if placed:
        xs, ys, names = zip(*placed, strict=True)
        size = {"star": 16, "square-open": 14}.get(symbol, 9)
        told = f"%{{customdata}}<br>{x.title}: %{{x:,.4~g}}<br>{y.title}: %{{y:,.4~g}}"
        yield points(
            numbers(xs), numbers(ys), label, colour, symbol,
            marker={"size": size}, customdata=list(names), hovertemplate=told,
        )  # fmt: skip


def sensitivity_figures(summary: Row, knob: str) -> dict[str, Figure]:
    """A knob's values against the objective and each limited percentile, the other knobs as the best has them."""
    found = summary["sensitivity"][knob]
    return {measure.key: _by_value(knob, found, measure) for measure in measures(summary)}


def _by_value(knob: str, found: Sequence[Row], measure: Measure) -> Figure:
    labels = [value_label(point["value"]) for point in found]
    values = [None if point["reason"] else point["metrics"].get(measure.key) for point in found]
    heights = [None if value is None else numbers([value])[0] for value in values]
    cannot = [label for label, point in zip(labels, found, strict=True) if point["reason"]]

    def marked(name: str, colour: str, symbol: str, rows: Iterable[bool], **more: Any) -> Iterator[Trace]:
        places = [place for place, is_so in enumerate(rows) if is_so and heights[place] is not None]
        if places:
            yield points([labels[at] for at in places], [heights[at] for at in places], name, colour, symbol, **more)

    told = {"hovertemplate": "%{y:,.4~g}"}
    traces = [
        line(labels, heights, measure.title, GREEN, connectgaps=True, showlegend=False, mode="lines+markers", **told),
        *marked(
            BREAKS,
            VERMILLION,
            "x",
            [bool(point["reason"] is None and breaks_a_limit(point)) for point in found],
            hoverinfo="skip",
        ),
        *marked(
            "chosen",
            PURPLE,
            "circle-open",
            [point["is_winner"] for point in found],
            marker={"size": 15},
            hoverinfo="skip",
        ),
    ]
    if cannot:
        traces.append(points(cannot, [0] * len(cannot), "cannot serve", GREY, "x-open", hoverinfo="skip"))
    shapes = [] if measure.limit is None else [across(measure.limit, VERMILLION)]
    y = axis(measure.title, rangemode="tozero")
    x = axis(knob, type="category", categoryorder="array", categoryarray=labels)
    return figure(traces, f"{measure.title} by {knob}", x=x, y=y, shapes=shapes)


def capacity_figures(summary: Row) -> dict[str, Figure]:
    """Each limited percentile against the request rate, with its limit, the highest rate that keeps all, and the knee."""
    shown = zip(summary["slo"], limited(summary), strict=True)
    return {name: _against_rate(summary, name, measure) for name, measure in shown}


def _against_rate(summary: Row, name: str, measure: Measure) -> Figure:
    found = [row for row in summary["curve"] if row[name] is not None]
    rates, values = numbers(row["request_rate"] for row in found), numbers(row[name] for row in found)
    traces = [line(rates, values, measure.title, BLUE, showlegend=False, hoverinfo="skip")]
    for keeps, label, colour, symbol in ((True, "keeps all limits", BLUE, "circle"), (False, BREAKS, VERMILLION, "x")):
        places = [place for place, row in enumerate(found) if row["keeps_limits"] is keeps]
        if places:
            told = "%{x:,.4~g} requests/s: %{y:,.4~g} ms"
            traces.append(
                points(
                    [rates[at] for at in places],
                    [values[at] for at in places],
                    label,
                    colour,
                    symbol,
                    hovertemplate=told,
                )
            )
    shapes = [] if measure.limit is None else [across(measure.limit, VERMILLION)]
    for rate, label, colour in (
        (summary["max_request_rate"], "capacity", PURPLE),
        (summary["knee_request_rate"], "knee", GREEN),
    ):
        if rate is not None:
            shapes.append(across(rate, colour, "x"))
            traces.append(line([None], [None], f"{label}: {rate:,.4g} requests/s", colour, line={"dash": "dash"}))
    known = [row[name] for row in found] + ([] if measure.limit is None else [measure.limit])
    y = axis(measure.title, min(known, default=None), max(known, default=None))
    return figure(traces, measure.title, x=axis("requests a second"), y=y, shapes=shapes, hovermode="closest")
