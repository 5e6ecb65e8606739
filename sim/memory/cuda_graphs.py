"""What captured CUDA graphs take, and what vLLM estimates that they will take."""

from typing import NamedTuple

from sim.memory.parameters import GraphParameters
from sim.specs.engine import ResolvedEngine
from sim.specs.model import ModelSpec


class GraphCount(NamedTuple):
    """Graphs captured at start-up: with attention outside (piecewise) and whole steps (full)."""

    piecewise: int
    full: int

    @property
    def total(self) -> int:
        return self.piecewise + self.full


def graph_count(engine: ResolvedEngine) -> GraphCount:
    """Whole decode steps are captured for sizes up to max_num_seqs only."""
    sizes = engine.cudagraph_capture_sizes
    decode_sizes = sum(size <= engine.max_num_seqs for size in sizes)
    match engine.cudagraph_mode:
        case "NONE":
            return GraphCount(0, 0)
        case "PIECEWISE":
            return GraphCount(len(sizes), 0)
        case "FULL":
            return GraphCount(0, len(sizes))
        case "FULL_DECODE_ONLY":
            return GraphCount(0, decode_sizes)
        case "FULL_AND_PIECEWISE":
            return GraphCount(len(sizes), decode_sizes)


def graph_bytes(model: ModelSpec, num_graphs: int, parameters: GraphParameters) -> int:
    """A graph keeps its kernels' arguments: as many as the model has layers, more where experts are routed."""
    expert_layers = sum(1 for layer in model.layers if layer.experts)
    per_graph = (
        parameters.per_graph_bytes.value
        + parameters.per_layer_bytes.value * model.num_layers
        + parameters.per_expert_layer_bytes.value * expert_layers
    )
    return int(num_graphs * per_graph)
