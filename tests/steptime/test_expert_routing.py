"""How many experts a batch wakes and how many rows it multiplies, worked by hand, drawn, and within the bounds that any routing obeys."""

from itertools import pairwise
from math import erfc, sqrt
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.specs.model import Experts
from sim.steptime.expert_routing import (
    ExpertRouting,
    ExpertsLoad,
    chance_above,
    chosen_shares,
    expected_distinct_experts,
    experts_load,
    rows_of_tiles,
    tile_rows_of,
)

MIXTRAL = Experts(8, 2, 4096, 14336)
ROUTINGS: tuple[ExpertRouting, ...] = get_args(ExpertRouting)


def test_even_choice_by_hand() -> None:
    """One token wakes its 2 of 8 experts, two tokens 3.5, very many all."""
    assert [expected_distinct_experts(tokens, MIXTRAL, "uniform") for tokens in (1.0, 2.0)] == [2.0, 3.5]
    assert expected_distinct_experts(1000.0, MIXTRAL, "uniform") == pytest.approx(8)


def test_balanced_choice_repeats_nothing_it_need_not() -> None:
    """Three tokens of two experts each wake six, five wake all eight."""
    assert [expected_distinct_experts(tokens, MIXTRAL, "balanced") for tokens in (3.0, 5.0)] == [6, 8]


def test_popularity_by_hand() -> None:
    """The second of two experts is 0.536 times as popular, as half to the 0.9 is: a token's only one is the first with 0.651, and two tokens wake 1.454."""
    assert expected_distinct_experts(2.0, Experts(2, 1, 64, 64), "skewed") == pytest.approx(1.454, abs=1e-3)


def test_an_expert_is_chosen_at_most_once_a_token() -> None:
    """As popular as it is, the first of 128 would be among a token's 8 more than once; a lone token still wakes exactly 8."""
    assert expected_distinct_experts(1.0, Experts(128, 8, 2048, 768)) == pytest.approx(8)
    assert expected_distinct_experts(1.0, Experts(4, 4, 64, 64)) == pytest.approx(4)


@given(num_experts=st.integers(2, 512), chosen=st.integers(1, 8), tokens=st.integers(1, 4096))
def test_the_more_even_the_more_experts(num_experts: int, chosen: int, tokens: int) -> None:
    """Each routing wakes at most as many as the next; never fewer than one token does, never more than all."""
    experts = Experts(num_experts, min(chosen, num_experts), 64, 64)
    found = [expected_distinct_experts(tokens, experts, routing) for routing in ROUTINGS]
    assert experts.num_experts_per_tok <= found[0] + 1e-9
    assert all(more <= even + 1e-9 for more, even in pairwise(found))
    assert found[-1] <= num_experts + 1e-9


@pytest.mark.parametrize(
    ("tokens", "tile_rows"), [(1, 8), (28, 8), (29, 16), (57, 16), (58, 32), (172, 48), (173, 64), (9999, 64)]
)
def test_tiles_grow_with_the_rows_of_an_expert(tokens: int, tile_rows: int) -> None:
    """As vLLM's marlin_moe.py chooses them: 7 rows are less than nine tenths of 8, 7.25 are not."""
    assert tile_rows_of(tokens, MIXTRAL) == tile_rows


def test_even_rows_in_tiles_by_hand() -> None:
    """Five tokens give each of 8 experts 1.25 rows: 8 tiles of 8. 100 give 25 each: one tile of 32."""
    assert experts_load(5.0, MIXTRAL, "balanced") == ExpertsLoad(5.0, 10.0, 8.0, 64.0, 8)
    assert experts_load(100.0, MIXTRAL, "balanced") == ExpertsLoad(100.0, 200.0, 8.0, 256.0, 32)


@pytest.mark.parametrize("tile_rows", [8, 48, 64])
@pytest.mark.parametrize(
    ("tokens", "chosen"), [(4, 0.1), (100, 0.02), (100, 0.5), (1000, 0.05), (4096, 0.02), (4096, 0.3)]
)
def test_rows_of_tiles_as_drawn(tokens: int, chosen: float, tile_rows: int) -> None:
    """20,000 experts, each chosen by so many tokens or not."""
    rows = np.random.default_rng(0).binomial(tokens, chosen, 20_000)
    drawn = tile_rows * np.ceil(rows / tile_rows).mean()
    assert rows_of_tiles(tokens, np.array([chosen]), tile_rows)[0] == pytest.approx(drawn, rel=0.04)


@given(
    num_experts=st.integers(2, 512),
    chosen=st.integers(1, 8),
    tokens=st.integers(1, 8192),
    routing=st.sampled_from(ROUTINGS),
)
def test_tiles_hold_all_rows_and_are_not_all_empty(
    num_experts: int, chosen: int, tokens: int, routing: ExpertRouting
) -> None:
    """A tile for each expert that has any row, and less than one more than it needs."""
    load = experts_load(tokens, Experts(num_experts, min(chosen, num_experts), 64, 64), routing)
    slack = 1e-3 * load.multiplied
    assert max(load.routed, load.tile_rows * load.distinct) <= load.multiplied + slack
    assert load.multiplied <= load.routed + load.tile_rows * load.distinct + slack


def test_a_normal_variable_is_above_as_often_as_the_error_function_says() -> None:
    scores = np.linspace(-5, 5, 101)
    assert chance_above(scores) == pytest.approx([erfc(score / sqrt(2)) / 2 for score in scores], abs=3e-4)


@pytest.mark.parametrize(("routing", "most"), [("skewed", 0.01), ("mild", 0.02), ("uniform", 0.05)])
def test_between_quarters_of_powers_of_two_loads_are_nearly_exact(routing: ExpertRouting, most: float) -> None:
    """Tiles of all tokens' own size."""
    experts = Experts(256, 8, 64, 64)
    chosen = chosen_shares(256, 8, routing)
    for tokens in range(65, 5000, 137):
        load = experts_load(float(tokens), experts, routing)
        assert load.routed == pytest.approx(8 * tokens)
        assert load.distinct == pytest.approx(expected_distinct_experts(tokens, experts, routing), rel=0.003)
        exact = rows_of_tiles(tokens, chosen, tile_rows_of(tokens, experts)).sum()
        assert load.multiplied == pytest.approx(exact, rel=most)
