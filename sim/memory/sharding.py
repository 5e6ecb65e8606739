"""Which part of a model one GPU holds: its pipeline stage's layers, and its share of each of them."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from sim.specs.engine import ResolvedEngine
from sim.specs.model import Layer, ModelSpec, ceil_div


class Stage(NamedTuple):
    """Pipeline stage `rank` of `size`, with the layers from `start` up to `stop`."""

    rank: int
    size: int
    start: int
    stop: int

    @property
    def is_first(self) -> bool:
        """The first stage has the embedding."""
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        """The last stage has the final norm and the output head, and samples."""
        return self.rank == self.size - 1

    def distinct_layers(self, model: ModelSpec) -> Mapping[Layer, int]:
        """Its different layers with how often each occurs."""
        return model.distinct_layers if self.size == 1 else Counter(model.layers[self.start : self.stop])


def pipeline_stages(num_layers: int, size: int) -> tuple[Stage, ...]:
    """As vLLM shares out layers: evenly, the rest one each to the stages before the last, from the back."""
    even, rest = divmod(num_layers, size)
    counts = [even] * size
    for place in range(2, rest + 2):
        counts[-place] += 1
    starts = [sum(counts[:rank]) for rank in range(size)]
    return tuple(Stage(rank, size, start, start + counts[rank]) for rank, start in enumerate(starts))


def layer_on_rank(layer: Layer, engine: ResolvedEngine) -> Layer:
    """One GPU's share of a layer. With expert parallelism it holds whole experts, the first GPUs one more where uneven."""
    mine = layer.per_rank(engine.tensor_parallel_size)
    if not (layer.experts and engine.enable_expert_parallel):
        return mine
    num_experts = ceil_div(layer.experts.num_experts, engine.tensor_parallel_size)
    return replace(mine, experts=replace(layer.experts, num_experts=num_experts))
