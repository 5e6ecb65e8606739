"""How many experts a batch of tokens wakes and how many rows they multiply for it, by how its router spreads tokens."""

from collections.abc import Callable
from functools import cache
from math import ceil, log2
from typing import Literal, NamedTuple

import numpy as np

from sim.specs.model import Experts
from sim.steptime.protocol import FloatArray

ExpertRouting = Literal["skewed", "mild", "uniform", "balanced"]
"""`skewed`: experts are popular nearly by Zipf's law, as text has them; `mild`: less so, as random tokens have them; `uniform`: each token chooses
evenly; `balanced`: as few repeat as can be."""

EXPONENTS: dict[ExpertRouting, float] = {"skewed": 0.9, "mild": 0.6, "uniform": 0.0}
"""The n-th popular expert is chosen in proportion to n to the minus so much. `benchmarks/fit_routing.py` fits the first to times per token of Mixtral and
Llama-4-Scout, served with the same prompts again and again, the second to those of Kimi-K2.5, MiniMax-M2.5 and gpt-oss-120b with random tokens.
"""

TILES = (8, 16, 32, 48, 64)
FILLED = 0.9
"""Kernels multiply an expert's rows in tiles, all of one size: the first of these of which the mean expert fills less than so much (vLLM's
marlin_moe.py; Triton's and TensorRT-LLM's grow with the rows of an expert as well, and no kernel table tells their sizes from these)."""
MOST_EXACT_TOKENS, QUARTERS = 64, 4
MOST_TILES = 5  # that an expert's rows are told apart by; of more, the last is half empty in the mean


class ExpertsLoad(NamedTuple):
    """What a step's tokens make of the experts of a layer that one GPU holds.

    `tokens` are those that choose among all experts, `routed` those that chose one of the GPU's, counted once for each of their experts; `distinct`
    are the experts that any token chose. `multiplied` are the rows of their tiles of `tile_rows`, of which each expert's last is filled up.
    """

    tokens: float
    routed: float
    distinct: float
    multiplied: float
    tile_rows: int


def experts_load(tokens: float, experts: Experts, expert_routing: ExpertRouting = "skewed") -> ExpertsLoad:
    """That of a GPU with all of a layer's experts, or a slice of each."""
    routed, tile_rows = tokens * experts.num_experts_per_tok, tile_rows_of(tokens, experts)
    if expert_routing == "balanced":
        distinct = expected_distinct_experts(tokens, experts, expert_routing)
        num_tiles = max(1, ceil(routed / experts.num_experts / tile_rows))
        return ExpertsLoad(tokens, routed, distinct, distinct * num_tiles * tile_rows, tile_rows)
    num_experts, num_chosen, exponent = experts.num_experts, experts.num_experts_per_tok, EXPONENTS[expert_routing]
    return interpolated(tokens, lambda at: _load(at, num_experts, num_chosen, exponent, tile_rows))


@cache
def _load(tokens: float, num_experts: int, num_chosen: int, exponent: float, tile_rows: int) -> ExpertsLoad:
    chosen = _chosen(num_experts, num_chosen, exponent)
    multiplied = float(rows_of_tiles(tokens, chosen, tile_rows).sum())
    return ExpertsLoad(tokens, tokens * num_chosen, _num_awake(tokens, chosen), multiplied, tile_rows)


def interpolated(tokens: float, load: Callable[[float], ExpertsLoad]) -> ExpertsLoad:
    """The load of so many tokens; of many, between those of two numbers that are quarters of a power of two apart.

    Experts and rows are within 0.3 %; whole tiles of an even choice, which grow by steps, within 5 %.
    """
    if tokens <= MOST_EXACT_TOKENS:
        return load(tokens)
    place = int(log2(tokens) * QUARTERS)
    below, above = 2.0 ** (place / QUARTERS), 2.0 ** ((place + 1) / QUARTERS)
    first, second, share = load(below), load(above), (tokens - below) / (above - below)
    return ExpertsLoad(
        tokens,
        first.routed + share * (second.routed - first.routed),
        first.distinct + share * (second.distinct - first.distinct),
        first.multiplied + share * (second.multiplied - first.multiplied),
        first.tile_rows,
    )


def expected_distinct_experts(tokens: float, experts: Experts, expert_routing: ExpertRouting = "skewed") -> float:
    """How many experts at least one of so many tokens chooses."""
    if expert_routing == "balanced":
        return min(float(experts.num_experts), tokens * experts.num_experts_per_tok)
    return _num_awake(tokens, chosen_shares(experts.num_experts, experts.num_experts_per_tok, expert_routing))


def _num_awake(tokens: float, chosen: FloatArray) -> float:
    return len(chosen) - float(((1 - chosen) ** tokens).sum())


def tile_rows_of(tokens: float, experts: Experts) -> int:
    """How many rows of an expert its kernel multiplies at once."""
    rows = tokens * experts.num_experts_per_tok / experts.num_experts
    return next((tile for tile in TILES if rows < FILLED * tile), TILES[-1])


def rows_of_tiles(tokens: float, chosen: FloatArray, tile_rows: int) -> FloatArray:
    """Rows expected in the tiles of experts that are chosen with these probabilities; beyond their first, counts are taken as normal."""
    rows = tokens * chosen
    ends = tile_rows * np.arange(1, MOST_TILES + 1) + 0.5
    begun = 1 - (1 - chosen) ** tokens
    begun += chance_above((ends - rows[..., None]) / np.sqrt(np.maximum(rows, 1e-12))[..., None]).sum(-1)
    found: FloatArray = np.where(rows < MOST_TILES * tile_rows, begun * tile_rows, rows + tile_rows / 2)
    return found


def chance_above(scores: FloatArray) -> FloatArray:
    """How likely a standard normal variable is to be larger, within 0.0003."""
    found: FloatArray = 0.5 * (1 - np.tanh(0.7978845608 * (scores + 0.044715 * scores**3)))
    return found


def chosen_shares(num_experts: int, num_experts_per_tok: int, expert_routing: ExpertRouting) -> FloatArray:
    """Each expert's probability to be among a token's, the most popular first."""
    return _chosen(num_experts, num_experts_per_tok, EXPONENTS[expert_routing])


@cache
def _chosen(num_experts: int, num_experts_per_tok: int, exponent: float) -> FloatArray:
    """Each expert's probability to be among a token's: proportional to rank to the -exponent, at most 1, summing to k."""
    weights = np.arange(1, num_experts + 1, dtype=np.float64) ** -exponent
    certain = 0
    while True:
        scale = (num_experts_per_tok - certain) / weights[certain:].sum()
        if scale * weights[certain] <= 1 or certain == num_experts_per_tok:
            break
        certain += 1
    chosen: FloatArray = np.concatenate((np.ones(certain), scale * weights[certain:]))
    return chosen
