"""How much more than the mean the busiest GPU of an expert-parallel layer gets."""

from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from sim.specs.model import Experts
from sim.steptime.busiest_rank import busiest_rank
from sim.steptime.expert_routing import ExpertsLoad, expected_distinct_experts, experts_load

DEEPSEEK = Experts(256, 8, 7168, 2048)


@pytest.mark.parametrize("tokens", [1, 4, 16, 64])
def test_even_choices_are_as_uneven_as_drawn(tokens: int) -> None:
    """A hundred draws of each token's eight experts, counted on eight GPUs of 32 experts."""
    rng, routed, distinct = Random(1), 0.0, 0.0  # noqa: S311 - a test's draws
    for _ in range(100):
        chosen = [expert for _ in range(tokens) for expert in rng.sample(range(256), 8)]
        routed += max(sum(expert // 32 == rank for expert in chosen) for rank in range(8)) / 100
        distinct += max(sum(expert // 32 == rank for expert in set(chosen)) for rank in range(8)) / 100
    found = busiest_rank(tokens, DEEPSEEK, 8, "uniform")
    assert found.routed == pytest.approx(routed, rel=0.1)
    assert found.distinct == pytest.approx(distinct, rel=0.1)


@pytest.mark.parametrize("tokens", [16, 64, 1024])
def test_the_busiest_fills_up_as_many_rows_as_all_do(tokens: int) -> None:
    """Thirty draws, each expert's rows counted in whole tiles."""
    rng, added = Random(1), 0.0  # noqa: S311 - a test's draws
    found = busiest_rank(tokens, DEEPSEEK, 8, "uniform")
    for _ in range(30):
        rows = Counter(expert for _ in range(tokens) for expert in rng.sample(range(256), 8))
        added += sum(-count % found.tile_rows for count in rows.values()) / 30 / 8
    assert found.multiplied - found.routed == pytest.approx(added, rel=0.1)


def test_experts_to_read_are_the_mean_where_popularity_was_told_from_it() -> None:
    """All GPUs together read what one GPU with all experts would."""
    found = busiest_rank(16.0, DEEPSEEK, 8, "skewed")
    assert 8 * found.distinct == pytest.approx(expected_distinct_experts(16.0, DEEPSEEK, "skewed"), rel=1e-6)
    assert 8 * busiest_rank(16.0, DEEPSEEK, 8, "uniform").distinct > 1.05 * expected_distinct_experts(
        16.0, DEEPSEEK, "uniform"
    )


def test_one_gpu_gets_everything() -> None:
    found = busiest_rank(20.0, DEEPSEEK, 1)
    assert found == experts_load(20.0, DEEPSEEK)
    assert found[:3] == (20.0, 160.0, expected_distinct_experts(20.0, DEEPSEEK))


def test_balanced_routing_loads_all_alike() -> None:
    """32 experts have two rows each, in tiles of 8."""
    assert busiest_rank(64.0, DEEPSEEK, 8, "balanced") == ExpertsLoad(64.0, 64.0, 32.0, 256.0, 8)


def test_copies_of_popular_experts_level_the_load() -> None:
    """Popular as text has them, the busiest GPU has 1.8 times the mean where experts lie by chance, and 1.02 with 32 copies."""
    unplaced, placed, copied = (busiest_rank(8192.0, DEEPSEEK, 8, "skewed", copies) for copies in (None, 0, 32))
    assert unplaced.routed / 8192 == pytest.approx(1.78, abs=0.05)
    assert placed.routed / 8192 == pytest.approx(1.22, abs=0.02)
    assert copied.routed / 8192 == pytest.approx(1.02, abs=0.01)
    assert copied.distinct == 36


def test_between_powers_of_two_loads_are_interpolated() -> None:
    """They grow all the way, and never by a jump."""
    routed = [busiest_rank(float(tokens), DEEPSEEK, 8, "uniform").routed for tokens in range(60, 200)]
    assert all(0.5 < after - before < 1.6 for before, after in pairwise(routed))
