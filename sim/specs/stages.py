"""Pipeline stages: which layers each has."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sim.specs.engine import ResolvedEngine
from sim.specs.model import Layer, ModelSpec


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


def whole(model: ModelSpec) -> Stage:
    """All of a model as one stage."""
    return Stage(0, 1, 0, model.num_layers)


def stages_of(model: ModelSpec, engine: ResolvedEngine) -> tuple[Stage, ...]:
    """Those of an engine, one where it has no pipeline."""
    return pipeline_stages(model.num_layers, engine.pipeline_parallel_size, engine.pp_layer_partition)


def pipeline_stages(num_layers: int, size: int, partition: Sequence[int] | None = None) -> tuple[Stage, ...]:
    """Stages with the layers of a `partition`, or as vLLM shares them out: evenly, the rest one each to the stages before the last, from the back."""
    counts = list(partition or _even(num_layers, size))
    starts = [sum(counts[:rank]) for rank in range(size)]
    return tuple(Stage(rank, size, start, start + counts[rank]) for rank, start in enumerate(starts))


def _even(num_layers: int, size: int) -> list[int]:
    even, rest = divmod(num_layers, size)
    counts = [even] * size
    for place in range(2, rest + 2):
        counts[-place] += 1
    return counts
