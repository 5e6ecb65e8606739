"""Runs side by side, and measured against predicted."""

from collections.abc import Mapping, Sequence
from typing import Any

from sim.report.figures.theme import (
    BLUE,
    GREEN,
    GREY,
    PURPLE,
    VERMILLION,
    Figure,
    Trace,
    axis,
    figure,
    line,
    numbers,
    points,
    see_through,
)

BAR_HEIGHT = 34
SYMBOLS = ("circle", "diamond", "square", "triangle-up")


def bars_figure(rows: Sequence[Mapping[str, Any]], name: str, column: str) -> Figure:
    """A figure of each run as a bar; none where there was nothing to measure."""
    names = [str(row[name]) for row in rows]
    values = [None if row.get(column) is None else numbers([row[column]])[0] for row in rows]
    trace: Trace = {
        "type": "bar", "orientation": "h", "x": values, "y": names, "marker": {"color": BLUE}, "textposition": "auto",
        "text": ["-" if value is None else f"{value:,.4g}" for value in values], "hovertemplate": "%{y}: %{text}<extra></extra>",
    }  # fmt: skip
    y = axis("", autorange="reversed", type="category")
    height = 90 + BAR_HEIGHT * len(rows)
    return figure([trace], column, x=axis(column, rangemode="tozero"), y=y, height=height, hovermode="closest")


def scatter_figure(validation: Mapping[str, Any], metrics: Sequence[str]) -> Figure | None:
    """Measured against predicted, each run a point for each latency; within the area they are 10 % apart. None without any."""
    traces, ends = [], []
    for metric, colour, symbol in zip(metrics, (BLUE, VERMILLION, GREEN, PURPLE), SYMBOLS, strict=True):
        runs = [run for run in validation["runs"] if metric in run.get("errors", ())]
        if runs:
            measured, predicted = ([run[side][metric] for run in runs] for side in ("measured", "predicted"))
            ends += [*measured, *predicted]
            told = "%{customdata}<br>measured %{x:,.4~g} ms, predicted %{y:,.4~g} ms"
            names = [run["id"] for run in runs]
            traces.append(
                points(
                    numbers(measured), numbers(predicted), metric, colour, symbol, customdata=names, hovertemplate=told
                )
            )
    if not ends:
        return None
    low, high = min(ends), max(ends)
    hidden = {"hoverinfo": "skip", "showlegend": False}
    area = line(
        numbers([low, high, high, low]), numbers([0.9 * low, 0.9 * high, 1.1 * high, 1.1 * low]), "within 10 %", GREY,
        line={"width": 0}, fill="toself", fillcolor=see_through(GREY, 0.2), hoverinfo="skip",
    )  # fmt: skip
    diagonal = line(numbers([low, high]), numbers([low, high]), "equal", GREY, line={"width": 1}, **hidden)
    x, y = axis("measured (ms)", low, high), axis("predicted (ms)", low, high)
    return figure([area, diagonal, *traces], "Measured against predicted", x=x, y=y, height=440, hovermode="closest")
