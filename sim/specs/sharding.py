"""Which part of a layer one GPU of its pipeline stage holds."""

from dataclasses import replace

from sim.specs.engine import ResolvedEngine
from sim.specs.model import Experts, Layer, ceil_div


def layer_on_rank(layer: Layer, engine: ResolvedEngine) -> Layer:
    """One GPU's share of a layer. With expert parallelism it holds whole experts, the first GPUs one more where uneven.

    Experts are shared out to the GPUs of all data-parallel ranks, all else to those of one.
    """
    mine = layer.per_rank(engine.tensor_parallel_size)
    return replace(mine, experts=experts_on_rank(layer.experts, engine)) if layer.experts else mine


def experts_on_rank(experts: Experts, engine: ResolvedEngine) -> Experts:
    """One GPU's share: a slice of each, or whole ones with copies."""
    if not engine.enable_expert_parallel:
        return experts.per_rank(engine.num_expert_ranks)
    num_experts = experts.num_experts + engine.num_redundant_experts
    return replace(experts, num_experts=ceil_div(num_experts, engine.num_expert_ranks))
