"""A fleet over time: the load, the queue and the prefix hits of each replica, and how many replicas there are."""

from typing import TYPE_CHECKING

import numpy as np

from sim.engine.records import Floats, Ints
from sim.metrics.over_time import ReplicasOverTime
from sim.report.plots import BLUE, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LINES = 8
"""More replicas are rows of colours."""


def fleet_figure(over_time: ReplicasOverTime, *, title: str) -> "Figure":
    """Up to MOST_LINES replicas as lines, more as rows whose colour is the figure."""
    time_s = over_time.time_s
    with panels(title, rows=4, columns=1, height_in=9.0) as (figure, axes):
        _of_each(axes[0], "Requests running", time_s, over_time.num_running)
        _of_each(axes[1], "Requests waiting", time_s, over_time.num_waiting)
        _of_each(axes[2], "Prompt tokens from the prefix cache (%)", time_s, _hit_rate(over_time))
        axes[3].set_title("Replicas that take requests")
        axes[3].step(time_s, over_time.is_ready.sum(axis=0), where="post", color=BLUE, linewidth=1.2)
        axes[3].set_ylim(0, 1.1 * len(over_time.is_ready))
        axes[3].set_xlabel("simulated time (s)")
        for axis in axes:
            axis.set_xlim(*_ends(time_s))
        if len(over_time.is_ready) <= MOST_LINES:
            axes[0].legend(loc="lower right", bbox_to_anchor=(1.0, 0.98), ncols=MOST_LINES)
    return figure


def _hit_rate(over_time: ReplicasOverTime) -> Floats:
    """In per cent of the tokens of prompts that began by then."""
    prompts, cached = (np.cumsum(tokens, axis=1) for tokens in (over_time.prompt_tokens, over_time.cached_tokens))
    return np.asarray(100 * cached / np.maximum(1, prompts))


def _ends(time_s: Floats) -> tuple[float, float]:
    """Of all intervals."""
    interval_s = time_s[1] - time_s[0] if len(time_s) > 1 else 1.0
    return float(time_s[0]), float(time_s[-1] + interval_s)


def _of_each(axes: "Axes", title: str, time_s: Floats, figures: Floats | Ints) -> None:
    import matplotlib as mpl
    from matplotlib.ticker import MaxNLocator

    axes.set_title(title)
    if len(figures) <= MOST_LINES:
        colours = mpl.colormaps["viridis"](np.linspace(0.0, 0.9, len(figures)))
        for number, (colour, row) in enumerate(zip(colours, figures, strict=True)):
            axes.step(time_s, row, where="post", color=colour, linewidth=1.1, label=f"replica {number}")
        axes.set_ylim(0, 1.05 * max(1, figures.max()))
        return
    rows = (len(figures) - 0.5, -0.5)
    image = axes.imshow(figures, aspect="auto", interpolation="nearest", cmap="viridis", extent=(*_ends(time_s), *rows))
    image.set_clim(0, max(1, figures.max()))
    axes.grid(visible=False)
    axes.set_ylabel("replica")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.figure.colorbar(image, ax=axes, pad=0.01)
