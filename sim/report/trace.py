"""A trace looked at closely, as text and as a figure."""

from typing import TYPE_CHECKING

import numpy as np

from sim.report.plots import BLUE, GREEN, GRID, ORANGE, VIOLET, panels, say_nothing, scale
from sim.workload.columns import Ints
from sim.workload.inspection import PrefixReuse, Sessions, TraceInspection, windows
from sim.workload.stack_distance import reuses
from sim.workload.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_BARS, NUM_SIZES, NUM_POINTS = 120, 200, 1000
DECADES = 4  # of cache sizes below the one that is enough


def inspection_rows(found: TraceInspection, mean_rate_rps: float | None) -> dict[str, str]:
    """Values by label, to stand below those of the description."""
    return dict(_rows(found, mean_rate_rps))


def _rows(found: TraceInspection, mean_rate_rps: float | None) -> "Iterator[tuple[str, str]]":
    if found.peak_minute_rps is not None and mean_rate_rps is not None:
        times = found.peak_minute_rps / mean_rate_rps
        yield "Busiest minute", f"{found.peak_minute_rps:.2f} requests/s ({times:.2f} times the mean)"
    if found.index_of_dispersion is not None:
        window = f"windows of {found.dispersion_window_s:g} s; 1 for Poisson"
        yield "Index of dispersion", f"{found.index_of_dispersion:.2f} ({window})"
    if mean_rate_rps is not None:
        yield "Concurrency", f"{mean_rate_rps:.2f} for each second that a request takes (ends are not recorded)"
    if found.sessions is not None:
        yield from _session_rows(found.sessions)
    if found.prefix_reuse is not None:
        yield from _reuse_rows(found.prefix_reuse)


def _session_rows(found: Sessions) -> "Iterator[tuple[str, str]]":
    turns = (
        f"mean {found.mean_turns:.1f}, P50 {found.p50_turns:.0f}, P90 {found.p90_turns:.0f}, max {found.max_turns:,}"
    )
    yield "Turns a session", turns
    if found.think_time_p50_s is not None:
        label = "Think time" if found.think_time_is_recorded else "Between turns' arrivals"
        yield label, f"P50 {found.think_time_p50_s:.1f} s, P90 {found.think_time_p90_s:.1f} s"
    mean = "" if found.mean_open is None else f"mean {found.mean_open:.1f}, "
    yield "Sessions open at once", f"{mean}max {found.peak_open:,} (first to last arrival)"


def _reuse_rows(found: PrefixReuse) -> "Iterator[tuple[str, str]]":
    if found.gap_p50_s is not None:
        yield "Between uses of a block", f"P50 {found.gap_p50_s:.1f} s, P90 {found.gap_p90_s:.1f} s"
    yield "Different tokens", f"{found.distinct_tokens:,} (in whole blocks of {found.block_size})"
    note = " of the prompt tokens found, at most, by an LRU prefix cache of so many tokens"
    for one in found.hit_rate_by_cache_size:
        yield f"Cache of {one.cache_tokens:,}", f"{one.hit_rate:.1%}{note}"
        note = ""


def trace_figure(trace: Trace, *, title: str) -> "Figure":
    """Requests over time, lengths, gaps between arrivals, and hit rates by the size of the cache."""
    with panels(title, rows=2, columns=2, height_in=6.0) as (figure, axes):
        _rate(axes[0], trace)
        _shares(axes[1], "Lengths (tokens)", {"prompt": trace.prompt_tokens, "output": trace.output_tokens})
        _gaps(axes[2], trace)
        _hit_rates(axes[3], trace)
    return figure


def _rate(axes: "Axes", trace: Trace) -> None:
    if not trace.duration_s:
        axes.set_title("Requests/s")
        say_nothing(axes, "all come at once")
        return
    window_s = max(1.0, float(np.ceil(trace.duration_s / MOST_BARS)))
    counts = np.bincount(windows(trace, window_s))
    axes.set_title(f"Requests/s over {window_s:g} s")
    axes.stairs(counts / window_s, np.arange(len(counts) + 1) * window_s, color=BLUE, fill=True, alpha=0.8)
    axes.axhline(len(trace) / trace.duration_s, color=ORANGE, linewidth=1.0, linestyle="--")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("s since the first")


def _shares(axes: "Axes", title: str, columns: "Mapping[str, Ints]") -> None:
    axes.set_title(title)
    axes.set_ylabel("% of requests")
    for (label, values), colour in zip(columns.items(), (VIOLET, GREEN), strict=False):
        at, share = np.unique(values, return_counts=True)
        axes.plot(at, 100 * np.cumsum(share) / len(values), color=colour, drawstyle="steps-post", label=label)
    lowest, highest = (reduce(list(map(reduce, columns.values()))) for reduce in (min, max))
    scale(axes, "x", float(lowest), float(highest))
    axes.legend(loc="lower right")


def _gaps(axes: "Axes", trace: Trace) -> None:
    """Beside those of Poisson arrivals at the same rate."""
    axes.set_title("Gaps between arrivals (s)")
    if not trace.duration_s:
        say_nothing(axes, "all come at once")
        return
    gaps_s, shares = np.diff(trace.arrival_s), np.linspace(0.0, 1.0, NUM_POINTS)
    axes.plot(np.quantile(gaps_s, shares), 100 * shares, color=BLUE, label="the trace")
    reach_s = np.linspace(0.0, gaps_s.max(), NUM_POINTS)
    axes.plot(reach_s, -100 * np.expm1(-reach_s / gaps_s.mean()), color=ORANGE, linestyle="--", label="Poisson")
    axes.set_ylabel("% of gaps")
    axes.legend(loc="lower right")


def _hit_rates(axes: "Axes", trace: Trace) -> None:
    axes.set_title("Hit rate by cache size (tokens)")
    found = reuses(trace) if trace.says_contents else None
    if found is None or not found.enough_tokens:
        say_nothing(axes, "the trace does not say what prompts share" if found is None else "nothing is repeated")
        return
    smallest = max(found.block_size, found.enough_tokens // 10**DECADES)
    sizes = np.geomspace(smallest, 2 * found.enough_tokens, NUM_SIZES).astype(np.int64)
    axes.plot(sizes, [100 * found.hit_rate(size) for size in sizes.tolist()], color=GREEN, linewidth=1.8)
    axes.axvline(found.enough_tokens, color=GRID, linewidth=1.0)
    axes.set_ylabel("% of prompt tokens, at most")
    scale(axes, "x", float(sizes[0]), float(sizes[-1]))
    axes.set_ylim(bottom=0)
