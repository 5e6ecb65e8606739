"""How AIConfigurator's tables of experts spread their tokens, by what its collector draws.

Rows an expert are even ("balanced"), or follow a power law ("power_law_1.01", "power_law_1.2"): each expert's part is drawn from a density of x to
the -alpha between 1 and 0.8 of the tokens, and all are scaled to as many choices as tokens make (ai-dynamo/aiconfigurator, collector/vllm/collect_moe.py,
`power_law_logits_v3`). The draws themselves are not published: a load is the mean over NUM_DRAWS of them. Where tokens make fewer choices than there are
experts, parts are drawn otherwise, and calls of 4 and 8 tokens take as long as if no expert were chosen twice, which that does not explain: they are left out.
"""

from functools import cache
from typing import Final

import numpy as np
import pandas as pd

from sim.engine.records import Floats
from sim.specs.model import Experts
from sim.steptime.expert_routing import ExpertsLoad, experts_load, tile_rows_of

EVEN: Final = "balanced"
DRAWN = "power_law_"
NUM_DRAWS = 4


def is_told(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Of rows of a table, those of which it is known how they spread their tokens."""
    is_drawn = rows["distribution"].str.startswith(DRAWN) & (rows["num_tokens"] * rows["topk"] > rows["num_experts"])
    return (rows["distribution"] == EVEN) | is_drawn


@cache
def table_load(tokens: int, experts: Experts, distribution: str) -> ExpertsLoad:
    """What such a row makes of a GPU's experts."""
    if distribution == EVEN:
        return experts_load(float(tokens), experts, EVEN)
    alpha, routed = float(distribution.removeprefix(DRAWN)), tokens * experts.num_experts_per_tok
    rows = np.array([_rows(tokens, routed, experts.num_experts, alpha, draw) for draw in range(NUM_DRAWS)])
    tile_rows = tile_rows_of(tokens, experts)
    multiplied = tile_rows * np.ceil(rows / tile_rows).sum(axis=1).mean()
    return ExpertsLoad(tokens, routed, float((rows > 0).sum(axis=1).mean()), float(multiplied), tile_rows)


def _rows(tokens: int, routed: int, num_experts: int, alpha: float, draw: int) -> Floats:
    """Of each expert, the most popular first; what rounding leaves goes to those, or is taken from those that have any."""
    low, high = 1.0, (0.8 * tokens) ** (1 - alpha)
    drawn = np.random.default_rng(draw).random(num_experts)
    parts = np.sort(((high - low) * drawn + low) ** (1 / (1 - alpha)))[::-1]
    rows: Floats = np.round(parts / parts.sum() * routed)
    while missing := int(routed - rows.sum()):
        changed = np.arange(num_experts) if missing > 0 else np.flatnonzero(rows)[::-1]
        rows[changed[: abs(missing)]] += np.sign(missing)
    return rows
