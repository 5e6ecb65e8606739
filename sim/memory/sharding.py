"""Which part of a layer one GPU of its pipeline stage holds."""

from dataclasses import replace

from sim.specs.engine import ResolvedEngine
from sim.specs.model import Layer, ceil_div


def layer_on_rank(layer: Layer, engine: ResolvedEngine) -> Layer:
    """One GPU's share of a layer. With expert parallelism it holds whole experts, the first GPUs one more where uneven."""
    mine = layer.per_rank(engine.tensor_parallel_size)
    if not (layer.experts and engine.enable_expert_parallel):
        return mine
    num_experts = ceil_div(layer.experts.num_experts, engine.tensor_parallel_size)
    return replace(mine, experts=replace(layer.experts, num_experts=num_experts))
