"""Distributions in few points."""

import numpy as np
import pytest

from sim.metrics.distributions import LEVELS, distribution


def test_many_samples_are_told_in_few_points_of_their_curve() -> None:
    """From the first to the last, with more of them near the end."""
    samples_s = np.random.default_rng(0).permutation(np.linspace(1.0, 2.0, 50_001))
    found = distribution(samples_s)
    assert found is not None
    assert len(found.samples_s) <= len(LEVELS)
    assert (found.samples_s[0], found.samples_s[-1], found.shares[-1]) == (1.0, 2.0, 1.0)
    np.testing.assert_allclose(found.shares, (np.round((found.samples_s - 1) * 50_000) + 1) / 50_001)
    assert found.at(0.99) == pytest.approx(1.99)


def test_few_samples_are_all_there_and_count_as_often_as_they_occurred() -> None:
    """What never occurred is no sample."""
    found = distribution(np.array([3.0, 1.0, 2.0]), np.array([1, 3, 0]))
    assert found is not None
    assert (found.samples_s.tolist(), found.shares.tolist()) == ([1.0, 3.0], [0.75, 1.0])
    assert distribution(np.array([1.0]), np.array([0])) is None
