"""Least squares by damped Gauss-Newton steps (Levenberg and Marquardt), above the parameters' least values."""

from collections.abc import Callable

import numpy as np

from sim.engine.records import Floats

MOST_STEPS = 60
STEP = 1e-4  # of a parameter, for slopes
DAMPED, FREED = 8.0, 0.25  # how the damping changes after a move that failed, and one that did not
GOOD_ENOUGH = 1e-9  # of the sum of squares


def soft(errors: Floats, scale: float) -> Floats:
    """Residuals whose squares are the soft-L1 loss: those far beyond `scale` count as their size."""
    losses = 2 * scale**2 * (np.sqrt(1 + (errors / scale) ** 2) - 1)
    return np.asarray(np.copysign(np.sqrt(losses), errors), dtype=np.float64)


def solve(residuals: Callable[[Floats], Floats], start: Floats, least: Floats) -> Floats:
    """The parameters with the least sum of squares near `start`, each at least its own."""
    theta, damping = np.asarray(start, dtype=np.float64), 1e-2
    now = residuals(theta)
    for _ in range(MOST_STEPS):
        slopes = np.column_stack([(residuals(theta + STEP * unit) - now) / STEP for unit in np.eye(len(theta))])
        gradient, cost = slopes.T @ now, float(now @ now)
        is_free = (theta > least) | (gradient < 0)
        curvature = slopes[:, is_free].T @ slopes[:, is_free]
        for _ in range(8):
            damped = curvature + damping * np.diag(np.diag(curvature) + 1e-12)
            tried = theta.copy()
            tried[is_free] -= np.linalg.solve(damped, gradient[is_free])
            tried = np.maximum(tried, least)
            then = residuals(tried)
            if (gained := cost - float(then @ then)) > 0:
                break
            damping *= DAMPED
        if gained <= GOOD_ENOUGH * cost:
            return tried if gained > 0 else theta
        theta, now, damping = tried, then, damping * FREED
    return theta
