"""How many experts a batch wakes, worked by hand and within the bounds that any routing obeys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.specs.model import Experts
from sim.steptime.expert_routing import ExpertRouting, expected_distinct_experts

MIXTRAL = Experts(8, 2, 4096, 14336)
SCOUT = Experts(16, 1, 5120, 8192)


def test_even_choice_by_hand() -> None:
    """One token wakes its 2 of 8 experts, two tokens 3.5, very many all."""
    assert [expected_distinct_experts(tokens, MIXTRAL, "uniform") for tokens in (1.0, 2.0)] == [2.0, 3.5]
    assert expected_distinct_experts(1000.0, MIXTRAL, "uniform") == pytest.approx(8)


def test_balanced_choice_repeats_nothing_it_need_not() -> None:
    """Three tokens of two experts each wake six, five wake all eight."""
    assert [expected_distinct_experts(tokens, MIXTRAL, "balanced") for tokens in (3.0, 5.0)] == [6, 8]


@pytest.mark.parametrize(
    ("experts", "tokens", "measured"), [(MIXTRAL, 10, 6.5), (MIXTRAL, 20, 7.5), (SCOUT, 11, 6.7), (SCOUT, 33, 11.3)]
)
def test_popular_experts_as_served(experts: Experts, tokens: int, measured: float) -> None:
    """What step times of two models served on H100s tell, in experts a layer."""
    assert expected_distinct_experts(tokens, experts) == pytest.approx(measured, rel=0.03)


def test_an_expert_is_chosen_at_most_once_a_token() -> None:
    """With 8 of 128 by Zipf's law the first would be chosen 1.5 times; a lone token still wakes exactly 8."""
    assert expected_distinct_experts(1.0, Experts(128, 8, 2048, 768)) == pytest.approx(8)
    assert expected_distinct_experts(1.0, Experts(4, 4, 64, 64)) == pytest.approx(4)


@given(num_experts=st.integers(2, 512), chosen=st.integers(1, 8), tokens=st.integers(1, 4096))
def test_the_more_even_the_more_experts(num_experts: int, chosen: int, tokens: int) -> None:
    """Skewed wakes at most as many as uniform, uniform as balanced; never fewer than one token does, never more than all."""
    experts = Experts(num_experts, min(chosen, num_experts), 64, 64)
    routings: tuple[ExpertRouting, ...] = ("skewed", "uniform", "balanced")
    skewed, uniform, balanced = (expected_distinct_experts(tokens, experts, routing) for routing in routings)
    assert experts.num_experts_per_tok <= skewed + 1e-9
    assert skewed <= uniform + 1e-9 <= balanced + 2e-9 <= num_experts + 3e-9
