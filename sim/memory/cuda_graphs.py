"""What captured CUDA graphs take, and what vLLM estimates that they will take."""

from typing import NamedTuple

from sim.memory.parameters import EstimatedGraphParameters, TakenGraphParameters
from sim.specs.capture_sizes import full_graph_sizes
from sim.specs.engine import ResolvedEngine
from sim.specs.model import ModelSpec
from sim.specs.stages import Stage


class CapturedGraphs(NamedTuple):
    """Sizes in tokens of the graphs captured at start-up: with attention outside (piecewise), and of whole steps (full)."""

    piecewise: tuple[int, ...]
    full: tuple[int, ...]

    @property
    def num_graphs(self) -> int:
        return len(self.piecewise) + len(self.full)

    @property
    def num_tokens(self) -> int:
        """The sum of all sizes."""
        return sum(self.piecewise) + sum(self.full)


class GraphLayers(NamedTuple):
    """How many layers a graph runs on one GPU, and how many of them route to experts."""

    num_layers: int
    num_expert_layers: int


def captured_graphs(engine: ResolvedEngine) -> CapturedGraphs:
    """Whole decode steps are captured for sizes up to max_num_seqs only."""
    sizes, mode = engine.cudagraph_capture_sizes, engine.cudagraph_mode
    piecewise = sizes if mode in {"PIECEWISE", "FULL_AND_PIECEWISE"} else ()
    return CapturedGraphs(
        piecewise, full_graph_sizes(mode, sizes, max_num_seqs=engine.max_num_seqs, query_len=engine.uniform_query_len)
    )


def graph_layers(model: ModelSpec, stage: Stage) -> GraphLayers:
    counts = stage.distinct_layers(model).items()
    return GraphLayers(stage.stop - stage.start, sum(count for layer, count in counts if layer.experts))


def taken_bytes(graphs: CapturedGraphs, layers: GraphLayers, parameters: TakenGraphParameters) -> int:
    """A graph keeps something of its own, and for each layer memory in proportion to its size in tokens."""
    per_token = (
        parameters.per_token_and_layer_bytes.value * layers.num_layers
        + parameters.per_token_and_expert_layer_bytes.value * layers.num_expert_layers
    )
    return int(parameters.per_graph_bytes.value * graphs.num_graphs + per_token * graphs.num_tokens)


def estimated_bytes(graphs: CapturedGraphs, layers: GraphLayers, parameters: EstimatedGraphParameters) -> int:
    """vLLM captures the two largest graphs of a mode and takes all others to be like the second, whatever their size."""
    per_graph = (
        parameters.per_graph_bytes.value
        + parameters.per_layer_bytes.value * layers.num_layers
        + parameters.per_expert_layer_bytes.value * layers.num_expert_layers
    )
    return int(per_graph * graphs.num_graphs)
