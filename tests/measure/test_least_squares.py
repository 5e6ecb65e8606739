"""The solver finds what SciPy's does, inside and on its bounds."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import least_squares

from sim.engine.records import Floats
from sim.measure.least_squares import soft, solve

X = np.linspace(0.1, 4, 40)
NOISE = np.random.default_rng(3).normal(0, 0.1, 40)
NOISE[5] = 3.0  # an outlier


def errors_of(scale: float, rate: float) -> Callable[[Floats], Floats]:
    return lambda theta: np.asarray(
        theta[0] * np.exp(-theta[1] * X) - scale * np.exp(-rate * X) - NOISE, dtype=np.float64
    )


@pytest.mark.parametrize("rate", [0.7, -0.3])
def test_it_finds_what_scipy_finds(rate: float) -> None:
    """Soft-L1 loss; a rate below zero lies outside the bounds, so that one parameter ends on its own."""
    errors, start, least = errors_of(2.0, rate), np.array([1.0, 1.0]), np.array([0.1, 0.0])
    expected = least_squares(errors, start, loss="soft_l1", f_scale=0.15, bounds=(least, np.inf)).x
    assert solve(lambda theta: soft(errors(theta), 0.15), start, least) == pytest.approx(expected, rel=1e-3, abs=1e-6)
