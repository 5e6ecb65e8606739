"""Distributions of latencies: of a run, and of several runs laid over each other."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sim.metrics.distributions import Distribution
from sim.report.figures.theme import (
    BLUE,
    DASHES,
    GREEN,
    PURPLE,
    SERIES,
    VERMILLION,
    Figure,
    Trace,
    axis,
    figure,
    line,
    numbers,
    points,
)
from sim.units import MS

TITLES = {
    "ttft": "Time to first token",
    "tpot": "Time per output token",
    "itl": "Inter-token latency",
    "e2el": "End-to-end latency",
}
COLOURS = {"ttft": BLUE, "tpot": VERMILLION, "itl": GREEN, "e2el": PURPLE}
LONG_S = 20.0
MARKED = (("median", 0.5, "circle"), ("P99", 0.99, "diamond"))
FEW = 30  # samples are marked one by one


class _Unit(NamedTuple):
    name: str
    seconds: float


def latency_figure(name: str, found: Distribution) -> Figure:
    """The share of samples within each latency (an ECDF), with median and P99 marked."""
    unit = _unit([found])
    curve = _curve(found, unit, TITLES[name], {"color": COLOURS[name]})
    marks = [
        points([value], [100 * share], f"{label} {value:,.4g} {unit.name}", COLOURS[name], symbol, hoverinfo="skip")
        for label, share, symbol in MARKED
        for value in numbers([found.at(share)], 1 / unit.seconds)
    ]
    return _ecdf(name, [curve | {"showlegend": False}, *marks], [found], unit)


def overlaid_figure(name: str, found: Mapping[str, Distribution]) -> Figure:
    """The same of several runs, by what they are called; their lines differ in colour and in dashes."""
    unit = _unit(found.values())
    traces = [
        _curve(one, unit, label, {"color": SERIES[number % len(SERIES)], "dash": DASHES[number % len(DASHES)]})
        for number, (label, one) in enumerate(found.items())
    ]
    return _ecdf(name, traces, list(found.values()), unit)


def _unit(found: Iterable[Distribution]) -> _Unit:
    return _Unit("s", 1.0) if max(one.samples_s[-1] for one in found) >= LONG_S else _Unit("ms", MS)


def _curve(found: Distribution, unit: _Unit, label: str, style: Mapping[str, str]) -> Trace:
    x, y = numbers(found.samples_s, 1 / unit.seconds), numbers(found.shares, 100)
    mode = "lines+markers" if len(x) <= FEW else "lines"
    told = f"%{{y:.2f}} % within %{{x:,.4~g}} {unit.name}"
    return line(x, y, label, style["color"], line={"shape": "hv", **style}, mode=mode, hovertemplate=told)


def _ecdf(name: str, traces: Sequence[Trace], found: Sequence[Distribution], unit: _Unit) -> Figure:
    lowest = min(one.samples_s[0] for one in found) / unit.seconds
    highest = max(one.samples_s[-1] for one in found) / unit.seconds
    return figure(
        traces,
        f"{TITLES[name]} ({name.upper()})",
        x=axis(f"{name.upper()} ({unit.name})", float(lowest), float(highest)),
        y=axis("% of gaps" if name == "itl" else "% of requests", range=[0, 102]),
        hovermode="closest",
    )
