"""What the busiest of the GPUs that share out a layer's experts gets, which is whom all others wait for.

An expert's number says nothing of its popularity: what is expected is the mean over random placements, of which NUM_PLACEMENTS are drawn, always
the same. On each, ranks are taken as independent and their loads as normal. With expert load balancing (vLLM's EPLB)
experts are placed by their popularity instead, the most popular ones on several GPUs.
"""

from functools import cache
from random import Random

import numpy as np

from sim.specs.model import Experts, ceil_div
from sim.steptime.expert_routing import (
    ExpertRouting,
    ExpertsLoad,
    chance_above,
    chosen_shares,
    experts_load,
    interpolated,
    rows_of_tiles,
    tile_rows_of,
)
from sim.steptime.protocol import FloatArray

NUM_PLACEMENTS = 16
GRID = np.linspace(-4.0, 4.0, 65)


def busiest_rank(
    tokens: float, experts: Experts, num_ranks: int, routing: ExpertRouting = "skewed", num_redundant: int | None = None
) -> ExpertsLoad:
    """Of `num_ranks` that hold whole experts; `num_redundant` copies of them where load is balanced, None where it is not.

    Of `skewed` experts those to be read are the mean of the GPUs, not what the busiest has to; what tiles are filled up with is
    the mean in any case.
    """
    if num_ranks == 1:
        return experts_load(tokens, experts, routing)
    if routing == "balanced":
        return _even(tokens, experts, num_ranks)
    tile_rows = tile_rows_of(tokens, experts)
    return interpolated(tokens, lambda at: _load(at, experts, num_ranks, routing, num_redundant, tile_rows))


@cache
def _load(
    tokens: float, experts: Experts, num_ranks: int, routing: ExpertRouting, num_redundant: int | None, tile_rows: int
) -> ExpertsLoad:
    chosen = _placed(experts.num_experts, experts.num_experts_per_tok, num_ranks, routing, num_redundant)
    awake = 1 - (1 - chosen) ** tokens
    num_local = chosen.shape[-1]
    routed = _expected_most(tokens * chosen.sum(-1), tokens * (chosen * (1 - chosen)).sum(-1))
    # the exponent of `skewed` was told from steps with the mean of ranks, and would be another one with their most
    distinct = (
        float(awake.sum(-1).mean())
        if routing == "skewed"
        else _expected_most(awake.sum(-1), (awake * (1 - awake)).sum(-1))
    )
    routed = min(routed, tokens * min(experts.num_experts_per_tok, num_local))
    added = (rows_of_tiles(tokens, chosen, tile_rows) - tokens * chosen).sum(-1).mean()
    return ExpertsLoad(tokens, routed, min(distinct, float(num_local), routed), routed + float(added), tile_rows)


def _even(tokens: float, experts: Experts, num_ranks: int) -> ExpertsLoad:
    whole = experts_load(tokens, experts, "balanced")
    distinct = min(float(ceil_div(experts.num_experts, num_ranks)), max(1.0, whole.routed / num_ranks))
    multiplied = distinct * whole.multiplied / whole.distinct
    return ExpertsLoad(tokens, whole.routed / num_ranks, distinct, multiplied, whole.tile_rows)


@cache
def _placed(
    num_experts: int, num_chosen: int, num_ranks: int, routing: ExpertRouting, num_redundant: int | None
) -> FloatArray:
    """The shares of tokens that choose each expert: placement by placement, rank by rank; 0 where a rank has one less."""
    shares = chosen_shares(num_experts, num_chosen, routing)
    if num_redundant is not None:
        return _balanced(shares, num_ranks, num_redundant)[None]
    num_local, rng = ceil_div(num_experts, num_ranks), Random(0)  # noqa: S311 - a simulation's draws
    placements = np.zeros((NUM_PLACEMENTS, num_ranks * num_local))
    for placement in placements:
        order = list(range(num_experts))
        rng.shuffle(order)
        placement[:num_experts] = shares[order]
    return placements.reshape(NUM_PLACEMENTS, num_ranks, num_local)


def _balanced(shares: FloatArray, num_ranks: int, num_redundant: int) -> FloatArray:
    """As EPLB places them: copies go to whom they relieve most, and then each to the least loaded rank with room."""
    copies = np.ones(len(shares))
    for _ in range(num_redundant):
        copies[np.argmax(shares / copies)] += 1
    loads = sorted(np.repeat(shares / copies, copies.astype(np.int64)).tolist(), reverse=True)
    num_local = ceil_div(len(loads), num_ranks)
    ranks: list[list[float]] = [[] for _ in range(num_ranks)]
    for load in loads:
        min((rank for rank in ranks if len(rank) < num_local), key=sum).append(load)
    return np.array([rank + [0.0] * (num_local - len(rank)) for rank in ranks])


def _expected_most(means: FloatArray, variances: FloatArray) -> float:
    """The largest of normal variables, expected over each row of them, and the mean over rows."""
    spread = np.sqrt(np.maximum(variances, 1e-12))
    low, high = (means - 4 * spread).min(-1), (means + 4 * spread).max(-1)
    points = low[:, None] + (high - low)[:, None] * (GRID - GRID[0]) / (GRID[-1] - GRID[0])
    scores = (points[:, :, None] - means[:, None, :]) / spread[:, None, :]
    below = np.prod(1 - chance_above(scores), axis=-1)
    return float((high - (below[:, 1:] + below[:, :-1]).sum(-1) / 2 * (high - low) / (len(GRID) - 1)).mean())
