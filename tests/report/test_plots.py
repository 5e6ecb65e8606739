"""What the plots draw."""

from pathlib import Path

import numpy as np

from sim.report.plots import NUM_CDF_POINTS, _cdf, panels


def test_a_distribution_of_many_samples_is_drawn_with_few_points(tmp_path: Path) -> None:
    """From the first sample to the last, each point on the curve that all samples would give."""
    samples_s = np.linspace(1.0, 2.0, 50_001)
    with panels(tmp_path / "plot.png", "many", rows=1, columns=1, height_in=3.0) as (axes,):
        _cdf(axes, "samples", "black", samples_s)
        x_ms, y_percent = map(np.asarray, axes.lines[0].get_data())
    assert len(x_ms) <= NUM_CDF_POINTS
    assert (x_ms[0], x_ms[-1]) == (1000.0, 2000.0)
    np.testing.assert_allclose(y_percent, 100 * (np.round((x_ms / 1000 - 1) * 50_000) + 1) / 50_001)
