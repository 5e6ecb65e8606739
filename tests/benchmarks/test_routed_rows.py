"""What calls in AIConfigurator's tables make of experts."""

from math import log

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.routed_rows import is_told, table_load
from sim.specs.model import Experts
from sim.steptime.expert_routing import ExpertsLoad

KIMI = Experts(384, 8, 7168, 2048)


def test_even_rows_by_hand() -> None:
    """48 tokens have 384 experts once each."""
    assert table_load(48, KIMI, "balanced") == ExpertsLoad(48.0, 384.0, 384.0, 8 * 384.0, 8)


def test_a_sixth_of_the_experts_have_no_row() -> None:
    """Of 384 at 1,024 tokens: drawn evenly by logarithms from 1 to 819 and scaled by 0.175, to 21 in the mean, those below 2.86 come to less than half a row."""
    share = 1 - log(2.86) / log(819)
    assert table_load(1024, KIMI, "power_law_1.01").distinct == pytest.approx(share * 384, rel=0.03)


@given(tokens=st.integers(50, 20_000), alpha=st.sampled_from(["1.01", "1.2"]), chosen=st.integers(8, 22))
def test_all_choices_are_made(tokens: int, alpha: str, chosen: int) -> None:
    load = table_load(tokens, Experts(384, chosen, 7168, 2048), f"power_law_{alpha}")
    assert load.routed == tokens * chosen
    assert max(load.routed, load.tile_rows * load.distinct) <= load.multiplied
    assert load.multiplied < load.routed + load.tile_rows * load.distinct


@pytest.mark.parametrize(
    ("distribution", "tokens", "told"),
    [("balanced", 1, True), ("power_law_1.01", 48, False), ("power_law_1.01", 49, True), ("forced", 49, False)],
)
def test_rows_are_told_where_the_collector_is_known_to_draw_them(distribution: str, tokens: int, told: bool) -> None:
    row = {"distribution": distribution, "num_tokens": tokens, "topk": 8, "num_experts": 384}
    assert is_told(pd.DataFrame([row])).tolist() == [told]
