"""Two plots of a run: how its latencies are distributed, and what the engine did over time."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.metrics.statistics import percentiles
from sim.metrics.summary import kv_cache_usage, latencies
from sim.serving.records import Floats, Ints, Records, StepRecords
from sim.units import MS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

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
    "savefig.dpi": 144,
}
NUM_INSTANTS = 1200
NUM_BINS = 120
NUM_CDF_POINTS = 4000


def latency_plot(path: Path, records: Records, *, title: str) -> None:
    """Cumulative distributions of the four latencies with median and p99 marked, as a PNG."""
    of_requests = latencies(records.requests)
    with panels(path, title, rows=2, columns=2, height_in=6.0) as axes:
        _cdf(axes[0], "Time to first token", BLUE, of_requests.ttft_s)
        _cdf(axes[1], "Time per output token", ORANGE, of_requests.tpot_s)
        _cdf(axes[2], "Inter-token latency", GREEN, records.itl_s, records.itl_count)
        _cdf(axes[3], "End-to-end latency", VIOLET, of_requests.e2el_s)


def timeline_plot(path: Path, records: Records, *, num_gpu_blocks: int, title: str) -> None:
    """KV cache, queues and tokens over simulated time, as a PNG."""
    steps = records.steps
    with panels(path, title, rows=4, columns=1, height_in=8.0) as axes:
        if len(steps):
            first_s, last_s = float(records.requests.arrival_s[0]), float(steps.end_s[-1])
            _states(axes, steps, np.linspace(first_s, last_s, NUM_INSTANTS), num_gpu_blocks)
            _rates(axes[2:], steps, np.linspace(first_s, last_s, NUM_BINS + 1))
        axes[-1].set_xlabel("simulated time (s)")


@contextmanager
def panels(path: Path, title: str, *, rows: int, columns: int, height_in: float) -> Iterator[list["Axes"]]:
    """Empty panels to draw on, row by row; what was drawn is saved at the end."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10.0, height_in), layout="constrained")
        figure.suptitle(title, x=0.01, horizontalalignment="left")
        yield [figure.add_subplot(rows, columns, place) for place in range(1, rows * columns + 1)]
        figure.savefig(path, format="png", metadata={"Software": None})


def _cdf(axes: "Axes", title: str, colour: str, samples_s: Floats, counts: Ints | None = None) -> None:
    axes.set_title(title)
    axes.set_xlabel("ms")
    axes.set_ylabel("% of samples")
    axes.set_ylim(0, 102)
    counts = np.ones(len(samples_s), dtype=np.int64) if counts is None else counts
    if not counts.any():
        axes.text(0.5, 0.5, "no sample", transform=axes.transAxes, horizontalalignment="center")
        return
    order = np.argsort(samples_s)
    share = np.cumsum(counts[order]) / counts.sum()
    if len(share) > NUM_CDF_POINTS:  # more than can be seen, of millions of token gaps
        drawn = np.unique(np.searchsorted(share, np.linspace(0.0, 1.0, NUM_CDF_POINTS)).clip(max=len(share) - 1))
        order, share = order[drawn], share[drawn]
    axes.plot(samples_s[order] / MS, share * 100, color=colour, linewidth=1.8, drawstyle="steps-post")
    axes.set_xscale("log")
    plain_log_ticks(axes.xaxis)
    median_ms, p99_ms = (value_s / MS for value_s in percentiles(samples_s, counts, (50, 99)))
    axes.axvline(median_ms, color=colour, linewidth=0.9, linestyle="--")
    axes.axvline(p99_ms, color=colour, linewidth=0.9, linestyle=":")
    axes.set_title(f"median {median_ms:,.1f} ms, p99 {p99_ms:,.1f} ms", loc="right", color=colour)


def plain_log_ticks(axis: "Axis") -> None:
    """1, 2 and 5 of each decade, in plain numbers."""
    from matplotlib.ticker import LogLocator

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:,g}")
    axis.set_minor_formatter("")


def _states(axes: list["Axes"], steps: StepRecords, instants_s: Floats, num_gpu_blocks: int) -> None:
    """The engine's state at each instant: that of the step which was running, and empty between steps."""
    step = np.maximum(np.searchsorted(steps.start_s, instants_s, side="right") - 1, 0)
    is_running = (steps.start_s[step] <= instants_s) & (instants_s <= steps.end_s[step])
    usage = np.where(is_running, kv_cache_usage(steps.num_free_blocks, num_gpu_blocks)[step], 0.0)
    axes[0].set_title("KV cache in use (%)")
    axes[0].fill_between(instants_s, usage * 100, color=BLUE, alpha=0.25, linewidth=0)
    axes[0].plot(instants_s, usage * 100, color=BLUE, linewidth=1.2)
    axes[0].set_ylim(0, 102)
    _mark_preemptions(axes[0], steps)
    axes[1].set_title("Requests")
    axes[1].plot(
        instants_s, np.where(is_running, steps.num_running[step], 0), color=GREEN, linewidth=1.2, label="running"
    )
    axes[1].plot(
        instants_s, np.where(is_running, steps.num_waiting[step], 0), color=ORANGE, linewidth=1.2, label="waiting"
    )
    axes[1].set_ylim(bottom=0)
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
    tokens = {"Prefill tokens/s": (VIOLET, steps.num_chunk_tokens), "Decode tokens/s": (GREEN, steps.num_decodes)}
    for axis, (title, (colour, per_step)) in zip(axes, tokens.items(), strict=True):
        in_bin, _ = np.histogram(steps.end_s, edges_s, weights=per_step)
        axis.set_title(title)
        axis.stairs(in_bin / width_s, edges_s, color=colour, fill=True, alpha=0.8)
        axis.yaxis.set_major_formatter("{x:,.0f}")
