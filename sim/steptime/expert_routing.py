"""How many experts a batch of tokens wakes, by how its router spreads them."""

from functools import cache
from typing import Literal

import numpy as np

from sim.specs.model import Experts
from sim.steptime.protocol import FloatArray

ExpertRouting = Literal["skewed", "uniform", "balanced"]
"""`skewed`: experts are popular by Zipf's law; `uniform`: each token chooses evenly; `balanced`: as few repeat as can be."""

# Step times of Mixtral-8x7B and Llama-4-Scout served on H100s tell of 6.5 and 6.7 experts read at 10 and 11 tokens, as this
# exponent has it, where even choice would read 7.5 and 8.1. Routers trained to balance finer experts may be more even.
ZIPF_EXPONENT = 1.0


def expected_distinct_experts(tokens: float, experts: Experts, expert_routing: ExpertRouting = "skewed") -> float:
    """How many experts at least one of so many tokens chooses."""
    if expert_routing == "balanced":
        return min(float(experts.num_experts), tokens * experts.num_experts_per_tok)
    idle = (1 - chosen_shares(experts.num_experts, experts.num_experts_per_tok, expert_routing)) ** tokens
    return float(experts.num_experts - idle.sum())


def chosen_shares(num_experts: int, num_experts_per_tok: int, expert_routing: ExpertRouting) -> FloatArray:
    """Each expert's probability to be among a token's, the most popular first."""
    return _chosen(num_experts, num_experts_per_tok, ZIPF_EXPONENT if expert_routing == "skewed" else 0.0)


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
