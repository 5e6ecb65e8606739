"""Sums by parts are numpy's own."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.pairwise import AT_ONCE, pairwise_sum
from tests.properties import engine_examples as examples


@examples(60)
@given(num_values=st.integers(0, 5_000), at_once=st.integers(128, 2_000), seed=st.integers(0, 9))
def test_a_sum_by_parts_is_numpys_to_the_bit(num_values: int, at_once: int, seed: int) -> None:
    """However small the parts, as long as numpy would halve no less."""
    values = np.random.default_rng(seed).lognormal(sigma=8, size=num_values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sim.engine.pairwise.AT_ONCE", at_once)
        assert pairwise_sum(lambda first, end: values[first:end], num_values) == values.sum()


@pytest.mark.parametrize("num_values", [AT_ONCE, AT_ONCE + 1, 3 * AT_ONCE + 17, 40 * AT_ONCE - 1])
def test_so_is_the_sum_of_a_long_column(num_values: int) -> None:
    values = np.random.default_rng(0).lognormal(sigma=8, size=num_values)
    assert pairwise_sum(lambda first, end: values[first:end], num_values) == values.sum()
