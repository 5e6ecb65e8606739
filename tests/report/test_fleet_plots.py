"""Plots of fleets, small and large."""

from pathlib import Path

import numpy as np
import pytest

from sim.metrics.over_time import ReplicasOverTime
from sim.report.fleet_plots import fleet_figure
from sim.report.plots import save


def made(num_replicas: int, num_times: int) -> ReplicasOverTime:
    shape = (num_replicas, num_times)
    counts = np.arange(num_replicas * num_times).reshape(shape)
    ones = np.ones(shape, dtype=np.int64)
    tokens = np.full(shape, 100.0)
    return ReplicasOverTime(np.arange(0.0, num_times), counts, 0 * counts, tokens / 200, ones, ones, tokens, tokens / 4)


@pytest.mark.parametrize(("num_replicas", "num_images"), [(2, 0), (8, 0), (9, 3), (100, 3)])
def test_a_few_replicas_are_lines_and_many_are_rows(num_replicas: int, num_images: int, tmp_path: Path) -> None:
    """All panels share their times, and a scale is there for what is 0 throughout."""
    figure = fleet_figure(made(num_replicas, 5), title="a fleet")
    panels = [axes for axes in figure.axes if axes.get_title(loc="left")]
    assert len(panels) == 4
    assert sum(len(axes.images) for axes in panels) == num_images
    assert {axes.get_xlim() for axes in panels} == {(0.0, 5.0)}
    if num_images:
        assert panels[1].images[0].get_clim() == (0, 1)
        hits = np.asarray(panels[2].images[0].get_array())
    else:
        assert len(panels[0].lines) == num_replicas
        hits = np.array([line.get_ydata() for line in panels[2].lines])
    assert (hits == 25).all()
    assert np.asarray(panels[3].lines[0].get_ydata()).tolist() == [num_replicas] * 5
    save(figure, tmp_path / "fleet.png")


def test_a_single_instant_is_drawn(tmp_path: Path) -> None:
    save(fleet_figure(made(3, 1), title="short"), tmp_path / "fleet.png")
    save(fleet_figure(made(30, 1), title="short"), tmp_path / "fleet.png")
