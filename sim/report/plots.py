"""Two plots of a run: how its latencies are distributed, and what the engine did over time."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sim.engine.records import Floats, Ints, Records
from sim.engine.step_records import StepRecords
from sim.metrics.latencies import latencies
from sim.metrics.statistics import percentiles
from sim.metrics.summary import kv_cache_usage
from sim.units import MS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GRID = "#334155", "#e2e8f0"
BLUE, ORANGE, GREEN, VIOLET = "#2563eb", "#ea580c", "#16a34a", "#7c3aed"
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GRID,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "figure.titlesize": 11,
    "figure.titleweight": "bold",
    "axes.xmargin": 0.01,
}
DPI = 144
TITLE_WIDTH, LINE_IN = 105, 0.19  # characters and height of a line of a title
NUM_INSTANTS = 1200
NUM_BINS, STEPS_A_BIN = 120, 8  # at most, and at least
TOKEN_RATES = ("Prefill tokens/s", "Decode tokens/s")
NUM_CDF_POINTS = 4000
FEW_SAMPLES = 30  # each is marked
LOG_FROM = 5.0  # times as much
ROOM = 52  # characters below a panel of half the width
LONG_S = 20.0  # is shown in seconds
HALF = 0.5


def latency_figure(records: Records, *, title: str) -> "Figure":
    """Cumulative distributions of the four latencies with median and p99 marked."""
    of_requests = latencies(records.requests)
    with panels(title, rows=2, columns=2, height_in=6.0) as (figure, axes):
        _cdf(axes[0], "Time to first token", BLUE, of_requests.ttft.all_s())
        _cdf(axes[1], "Time per output token", ORANGE, of_requests.tpot.all_s())
        _cdf(axes[2], "Inter-token latency", GREEN, *records.gaps())
        _cdf(axes[3], "End-to-end latency", VIOLET, of_requests.e2el.all_s())
    return figure


def timeline_figure(records: Records, *, num_gpu_blocks: int, title: str) -> "Figure":
    """KV cache, queues and tokens over simulated time."""
    steps = records.steps
    with panels(title, rows=4, columns=1, height_in=8.0) as (figure, axes):
        if len(steps):
            first_s, last_s = float(records.requests.arrival_s[0]), float(steps.end_s[-1])
            _states(axes, steps, np.linspace(first_s, last_s, NUM_INSTANTS), num_gpu_blocks)
            num_bins = min(NUM_BINS, max(1, len(steps) // STEPS_A_BIN))
            _rates(axes[2:], steps, np.linspace(first_s, last_s, num_bins + 1))
            axes[-1].set_xlabel("simulated time (s)")
        else:
            for axis, panel in zip(axes, ("KV cache in use (%)", "Requests", *TOKEN_RATES), strict=True):
                axis.set_title(panel)
                say_nothing(axis, "no step ran")
    return figure


@contextmanager
def panels(
    title: str, *, rows: int, columns: int, height_in: float, width_in: float = 10.0
) -> "Iterator[tuple[Figure, list[Axes]]]":
    """A figure and its empty panels to draw on, row by row; the title, of any characters, may have several lines."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        num_lines = title.count("\n") + 1
        figure = Figure(figsize=(width_in, height_in + LINE_IN * (num_lines - 1)), layout="constrained")
        figure.suptitle(title, x=0.01, horizontalalignment="left", parse_math=False)
        yield figure, [figure.add_subplot(rows, columns, place) for place in range(1, rows * columns + 1)]


def save(figure: "Figure", path: Path) -> None:
    """As a PNG, the same bytes for the same figure; a character that the font lacks is a box and no warning."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")
        figure.set_dpi(DPI)
        canvas = FigureCanvasAgg(figure)  # `figure.savefig` draws twice, first for the layout alone
        canvas.print_png(path, metadata={"Software": None})  # type: ignore[no-untyped-call]


def say_nothing(axes: "Axes", why: str) -> None:
    """An empty panel with a text and no scale."""
    axes.text(0.5, 0.5, why, transform=axes.transAxes, horizontalalignment="center")
    axes.set_xticks([])
    axes.set_yticks([])


def _cdf(axes: "Axes", title: str, colour: str, samples_s: Floats, counts: Ints | None = None) -> None:
    axes.set_title(title)
    counts = np.ones(len(samples_s), dtype=np.int64) if counts is None else counts
    samples_s, counts = samples_s[counts > 0], counts[counts > 0]
    if not len(counts):
        say_nothing(axes, "no sample")
        return
    unit, unit_s = ("s", 1.0) if samples_s.max() >= LONG_S else ("ms", MS)
    axes.set_xlabel(unit)
    axes.set_ylabel("% of samples")
    axes.set_ylim(0, 102)
    order = np.argsort(samples_s)
    share = np.cumsum(counts[order]) / counts.sum()
    if len(share) > NUM_CDF_POINTS:  # more than can be seen, of millions of token gaps
        drawn = np.unique(np.searchsorted(share, np.linspace(0.0, 1.0, NUM_CDF_POINTS)).clip(max=len(share) - 1))
        order, share = order[drawn], share[drawn]
    samples, marker = samples_s[order] / unit_s, "o" if len(share) <= FEW_SAMPLES else ""
    axes.plot(samples, share * 100, color=colour, linewidth=1.8, drawstyle="steps-post", marker=marker, markersize=4)
    scale(axes, "x", float(samples[0]), float(samples[-1]))
    median, p99 = (value_s / unit_s for value_s in percentiles(samples_s, counts, (50, 99)))
    axes.axvline(median, color=colour, linewidth=0.9, linestyle="--")
    axes.axvline(p99, color=colour, linewidth=0.9, linestyle=":")
    axes.set_title(f"median {median:,.1f} {unit}, p99 {p99:,.1f} {unit}", loc="right", color=colour)


def scale(axes: "Axes", which: Literal["x", "y"], lowest: float, highest: float) -> None:
    """Logarithmic where values differ by enough, with 1, 2 and 5 of each decade or fewer, as there is room; else linear.

    Numbers are plain on both, and a lone value has room around it.
    """
    from matplotlib.ticker import LogLocator, MaxNLocator

    axis, bounds, as_log = (
        (axes.xaxis, axes.set_xlim, axes.set_xscale)
        if which == "x"
        else (axes.yaxis, axes.set_ylim, axes.set_yscale)
    )  # fmt: skip
    if lowest > 0 and highest >= LOG_FROM * lowest:
        as_log("log")
        axis.set_major_locator(LogLocator(subs=_subs(lowest, highest)))
        axis.set_minor_formatter("")
    else:
        axis.set_major_locator(MaxNLocator(nbins=6))
        margin = 0.05 * (highest - lowest) or 0.1 * abs(highest) or 1.0
        bounds(lowest - margin, highest + margin)
    axis.set_major_formatter("{x:,g}")


def _subs(lowest: float, highest: float) -> tuple[float, ...]:
    """Of each decade, what can be labelled between these values without labels that touch."""
    room = ROOM / np.log10(highest / lowest)  # characters a decade
    decades = 10.0 ** np.arange(np.floor(np.log10(lowest)), np.ceil(np.log10(highest)))
    for subs in ((1.0, 2.0, 5.0), (1.0, 3.0)):
        marks = [sub * decade for decade in decades for sub in subs if lowest <= sub * decade <= highest]
        widths = [len(f"{mark:,g}") for mark in marks]
        places = np.log10(marks) * room
        if all(b - a > (x + y) / 2 + 1 for (a, b), (x, y) in zip(pairwise(places), pairwise(widths), strict=True)):
            return subs
    return (1.0,)


def _states(axes: list["Axes"], steps: StepRecords, instants_s: Floats, num_gpu_blocks: int) -> None:
    """The engine's state over time: during each step that step's, and empty between steps."""
    from matplotlib.ticker import MaxNLocator

    step = np.maximum(np.searchsorted(steps.start_s, instants_s, side="right") - 1, 0)
    is_running = (steps.start_s[step] <= instants_s) & (instants_s <= steps.end_s[step])
    usage = np.where(is_running, kv_cache_usage(steps.num_free_blocks, num_gpu_blocks)[step], 0.0)
    axes[0].set_title("KV cache in use (%)")
    axes[0].fill_between(instants_s, usage * 100, color=BLUE, alpha=0.25, linewidth=0)
    axes[0].plot(instants_s, usage * 100, color=BLUE, linewidth=1.2)
    axes[0].set_ylim(0, 102 if usage.max() > HALF or steps.num_preempted.any() else max(1e-3, 120 * usage.max()))
    _mark_preemptions(axes[0], steps)
    axes[1].set_title("Requests")
    for label, colour, counts in (("running", GREEN, steps.num_running), ("waiting", ORANGE, steps.num_waiting)):
        axes[1].plot(instants_s, np.where(is_running, counts[step], 0), color=colour, linewidth=1.2, label=label)
    axes[1].set_ylim(bottom=0)
    axes[1].yaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True))
    axes[1].legend(loc="lower right", bbox_to_anchor=(1.0, 0.98), ncols=2)


def _mark_preemptions(axes: "Axes", steps: StepRecords) -> None:
    preempting = steps.num_preempted > 0
    if preempting.any():
        at_s = steps.start_s[preempting]
        axes.plot(at_s, np.full(len(at_s), 100.0), "v", color=ORANGE, markersize=4, clip_on=False)
        axes.set_title(f"{int(steps.num_preempted.sum()):,} preemptions", loc="right", color=ORANGE)


def _rates(axes: list["Axes"], steps: StepRecords, edges_s: Floats) -> None:
    """Tokens a second in each bin, at the end of the step that computed them."""
    width_s = edges_s[1] - edges_s[0]
    drawn = zip(axes, TOKEN_RATES, (VIOLET, GREEN), (steps.num_chunk_tokens, steps.num_decodes), strict=True)
    for axis, title, colour, per_step in drawn:
        in_bin, _ = np.histogram(steps.end_s, edges_s, weights=per_step)
        axis.set_title(title)
        axis.stairs(in_bin / width_s, edges_s, color=colour, fill=True, alpha=0.8)
        axis.set_ylim(0, None if in_bin.any() else 1)
        axis.yaxis.set_major_formatter("{x:,.0f}" if in_bin.max() > 10 * width_s else "{x:,g}")
