"""A trace looked at closely: requests over time, lengths, gaps between arrivals, hit rates by the size of a cache."""

from collections.abc import Iterator

import numpy as np

from sim.metrics.distributions import distribution
from sim.report.figures.theme import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    VERMILLION,
    Figure,
    across,
    axis,
    figure,
    line,
    numbers,
)
from sim.workload.columns import Floats, Ints
from sim.workload.inspection import windows
from sim.workload.stack_distance import reuses
from sim.workload.trace import Trace

MOST_BARS, NUM_SIZES = 240, 200
DECADES = 4  # of cache sizes below the one that is enough


def trace_figures(trace: Trace) -> Iterator[Figure]:
    """Those that there is something to draw for."""
    if trace.duration_s:
        yield _rate(trace)
    yield _lengths(trace)
    if trace.duration_s:
        yield _gaps(trace)
    if trace.says_contents:
        yield from _hit_rates(trace)


def _rate(trace: Trace) -> Figure:
    window_s = max(1.0, float(np.ceil(trace.duration_s / MOST_BARS)))
    counts = np.bincount(windows(trace, window_s)) / window_s
    bars = {
        "type": "bar", "x": numbers(np.arange(len(counts)) * window_s), "y": numbers(counts), "name": "requests", "offset": 0,
        "width": window_s, "marker": {"color": BLUE}, "hovertemplate": "%{y:,.4~g} requests/s<extra></extra>",
    }  # fmt: skip
    mean = across(len(trace) / trace.duration_s, VERMILLION)
    x, y = axis("time since the first request (s)"), axis("requests/s")
    return figure(
        [bars], f"Requests a second, over {window_s:g} s each; dashed: the mean", x=x, y=y, shapes=[mean], bargap=0
    )


def _lengths(trace: Trace) -> Figure:
    columns = {"prompt": (trace.prompt_tokens, PURPLE, "solid"), "output": (trace.output_tokens, GREEN, "dash")}
    ends = [int(end) for values, _, _ in columns.values() for end in (values.min(), values.max())]
    traces = [_shares(values.astype(float), name, colour, dash) for name, (values, colour, dash) in columns.items()]
    return _of_shares(traces, "Lengths", "tokens", "% of requests", min(ends), max(ends))


def _gaps(trace: Trace) -> Figure:
    """Beside those of Poisson arrivals at the same rate."""
    gaps_s = np.diff(trace.arrival_s)
    reach_s = np.linspace(0.0, gaps_s.max(), NUM_SIZES)
    poisson = -100 * np.expm1(-reach_s / gaps_s.mean())
    traces = [
        _shares(gaps_s, "the trace", BLUE, "solid"),
        line(numbers(reach_s), numbers(poisson), "Poisson", ORANGE, line={"dash": "dash"}, hoverinfo="skip"),
    ]
    return _of_shares(traces, "Gaps between arrivals", "seconds", "% of gaps")


def _shares(values: Floats, name: str, colour: str, dash: str) -> dict[str, object]:
    found = distribution(values)
    assert found is not None, "a trace has requests"
    told = "%{y:.1f} % within %{x:,.4~g}"
    shape = {"shape": "hv", "dash": dash}
    return line(numbers(found.samples_s), numbers(found.shares, 100), name, colour, line=shape, hovertemplate=told)


def _of_shares(
    traces: list[dict[str, object]],
    title: str,
    unit: str,
    share: str,
    lowest: float | None = None,
    highest: float | None = None,
) -> Figure:
    x, y = axis(unit, lowest, highest), axis(share, range=[0, 102])
    return figure(traces, title, x=x, y=y, hovermode="closest")


def _hit_rates(trace: Trace) -> Iterator[Figure]:
    found = reuses(trace)
    if not found.enough_tokens:
        return
    smallest = max(found.block_size, found.enough_tokens // 10**DECADES)
    sizes: Ints = np.geomspace(smallest, 2 * found.enough_tokens, NUM_SIZES).astype(np.int64)
    rates = numbers([100 * found.hit_rate(size) for size in sizes.tolist()])
    told = "%{y:.1f} % with %{x:,} tokens"
    curve = line(sizes.tolist(), rates, "hit rate", GREEN, hovertemplate=told, showlegend=False)
    x, y = (
        axis("cache size (tokens)", float(sizes[0]), float(sizes[-1])),
        axis("% of prompt tokens, at most", rangemode="tozero"),
    )
    yield figure([curve], "Hit rate of an LRU prefix cache", x=x, y=y, hovermode="closest")
