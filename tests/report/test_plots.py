"""What the plots draw."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.text import Text

from sim.engine.records import Records
from sim.report.plots import NUM_CDF_POINTS, _cdf, latency_figure, panels, save, timeline_figure
from tests.metrics.makers import Life, Step, make_records


def test_a_distribution_of_many_samples_is_drawn_with_few_points() -> None:
    """From the first sample to the last, each point on the curve that all samples would give."""
    samples_s = np.linspace(1.0, 2.0, 50_001)
    with panels("many", rows=1, columns=1, height_in=3.0) as (_, (axes,)):
        _cdf(axes, "samples", "black", samples_s)
        x_ms, y_percent = map(np.asarray, axes.lines[0].get_data())
    assert len(x_ms) <= NUM_CDF_POINTS
    assert (x_ms[0], x_ms[-1]) == (1000.0, 2000.0)
    np.testing.assert_allclose(y_percent, 100 * (np.round((x_ms / 1000 - 1) * 50_000) + 1) / 50_001)


def labels_below(axes: Axes) -> list[Text]:
    """Those of the horizontal axis that are seen, in order."""
    axes.get_figure(root=True).canvas.draw()  # type: ignore[union-attr]
    low, high = axes.get_xlim()
    labels = zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
    return [text for place, text in labels if low <= place <= high and text.get_text()]


@pytest.mark.parametrize(
    ("samples_s", "unit"),
    [((7.4e-3,), "ms"), ((5e-3, 68e-3), "ms"), ((0.5e-3, 19.0), "ms"), ((0.1, 900.0), "s"), ((0.3, 0.31, 0.32), "ms")],
)
def test_labels_below_a_distribution_do_not_touch_and_are_not_missing(samples_s: tuple[float, ...], unit: str) -> None:
    """Each pair has room between, and there are at least two; long times are told in seconds."""
    with panels("title", rows=2, columns=2, height_in=6.0) as (_, (axes, *_)):
        _cdf(axes, "samples", "black", np.array(samples_s))
    extents = [label.get_window_extent() for label in labels_below(axes)]
    assert axes.get_xlabel() == unit
    assert len(extents) >= 2
    assert all(left.x1 < right.x0 for left, right in pairwise(extents))


def test_gaps_that_never_occurred_are_not_drawn() -> None:
    """The time before the first step is a gap of nobody."""
    with panels("title", rows=1, columns=1, height_in=3.0) as (_, (axes,)):
        _cdf(axes, "gaps", "black", np.array([0.0, 1.0, 2.0]), np.array([0, 3, 1]))
    assert np.asarray(axes.lines[0].get_xdata()).tolist() == [1000.0, 2000.0]


@pytest.mark.parametrize(
    "records",
    [
        make_records(Life(rejected="too long")),
        make_records(Life(first_scheduled_s=0.0, first_token_s=1.0, finish_s=1.0), steps=(Step(0.0, 1.0, num_decodes=0, num_chunk_tokens=9),)),
        make_records(Life(first_scheduled_s=0.0), steps=(Step(0.0, 1.0), Step(1.0, 2.0, num_preempted=1))),
    ],
)  # fmt: skip
def test_runs_of_next_to_nothing_are_drawn(records: Records, tmp_path: Path) -> None:
    """With a title of any characters: dollar signs are no formula, letters that the font lacks no warning."""
    title = "a $trace$ of 会话\nsecond line"
    for figure in (latency_figure(records, title=title), timeline_figure(records, num_gpu_blocks=11, title=title)):
        save(figure, tmp_path / "plot.png")
        assert figure.get_suptitle() == title
        assert all(axes.get_title(loc="left") for axes in figure.axes)
        legends = [legend for axes in figure.axes if (legend := axes.get_legend()) is not None]
        assert all(legend.get_texts() for legend in legends)
