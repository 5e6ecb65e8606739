"""What vLLM finds in use on a GPU before it sizes the KV cache: weights, activation peak, non-torch memory, graphs."""

import math
from dataclasses import dataclass

from sim.memory.activations import ActivationPeak, activation_peak, activation_shape
from sim.memory.cuda_graphs import (
    CapturedGraphs,
    GraphLayers,
    captured_graphs,
    estimated_bytes,
    graph_layers,
    taken_bytes,
)
from sim.memory.design import DESIGN, GraphMemoryModel, design_graph_bytes
from sim.memory.parameters import ProfilingParameters, memory_parameters
from sim.memory.weights import Part, weight_parts
from sim.specs.drafters import Drafter
from sim.specs.engine import ResolvedEngine
from sim.specs.hardware import HardwareProfile
from sim.specs.model import ModelSpec
from sim.specs.stages import Stage


@dataclass(frozen=True, slots=True)
class GraphMemory:
    """What captured graphs take, and what is subtracted from the KV cache for them; `model` says by which formula."""

    model: GraphMemoryModel
    captured: CapturedGraphs
    layers: GraphLayers
    taken_bytes: int
    subtracted_bytes: int


@dataclass(frozen=True, slots=True)
class Consumption:
    """Bytes per GPU of one stage; `requested_bytes` is the share of `total_bytes` that gpu_memory_utilization allows."""

    stage: Stage
    total_bytes: int
    requested_bytes: int
    weights: tuple[Part, ...]
    activation: ActivationPeak
    non_torch_bytes: int
    is_linked: bool
    graphs: GraphMemory

    @property
    def weights_bytes(self) -> int:
        return sum(part.num_bytes for part in self.weights)

    @property
    def used_bytes(self) -> int:
        """What is subtracted from `requested_bytes`."""
        profiled = self.weights_bytes + self.activation.total_bytes + self.non_torch_bytes
        return profiled + self.graphs.subtracted_bytes

    @property
    def left_bytes(self) -> int:
        """What vLLM logs as available KV cache memory; negative when the rest does not fit."""
        return self.requested_bytes - self.used_bytes


def consumption(
    model: ModelSpec,
    gpu: HardwareProfile,
    engine: ResolvedEngine,
    stage: Stage,
    graph_memory: GraphMemoryModel = "measured",
    drafter: Drafter | None = None,
) -> Consumption:
    """One GPU of a pipeline stage, all of them equal; the formulas are vLLM's since 0.11."""
    profiling = memory_parameters().profiling_for(engine.vllm_version)
    shape = activation_shape(model, engine, stage)
    weights = weight_parts(model, gpu, engine, stage, drafter)
    return Consumption(
        stage=stage,
        total_bytes=gpu.memory_bytes,
        requested_bytes=math.ceil(gpu.memory_bytes * engine.gpu_memory_utilization),
        weights=weights,
        activation=activation_peak(shape, engine.max_num_batched_tokens, engine.max_num_seqs, profiling),
        non_torch_bytes=non_torch_bytes(gpu, engine, profiling),
        is_linked=gpu.num_linked_gpus > 1,
        graphs=_design_graphs(model, engine, stage, weights)
        if graph_memory == "design"
        else _measured_graphs(model, engine, stage),
    )


def _measured_graphs(model: ModelSpec, engine: ResolvedEngine, stage: Stage) -> GraphMemory:
    parameters, graphs, layers = memory_parameters(), captured_graphs(engine), graph_layers(model, stage)
    estimate = estimated_bytes(graphs, layers, parameters.graphs_estimated) if engine.subtracts_graph_memory else 0
    taken = taken_bytes(graphs, layers, parameters.graphs_taken)
    return GraphMemory("measured", graphs, layers, taken, estimate)


def _design_graphs(model: ModelSpec, engine: ResolvedEngine, stage: Stage, weights: tuple[Part, ...]) -> GraphMemory:
    """The design subtracts its own estimate for graphs, in every version."""
    weights_bytes = sum(part.num_bytes for part in weights)
    taken = design_graph_bytes(weights_bytes, engine.cudagraph_capture_sizes, DESIGN)
    return GraphMemory("design", captured_graphs(engine), graph_layers(model, stage), taken, taken)


def non_torch_bytes(gpu: HardwareProfile, engine: ResolvedEngine, profiling: ProfilingParameters) -> int:
    """What CUDA libraries, NCCL and all-reduce buffers take beside PyTorch."""
    linked = gpu.num_linked_gpus > 1
    base = profiling.non_torch_for(engine.tensor_parallel_size, engine.pipeline_parallel_size, linked=linked)
    return int(base.value) + (0 if linked else int(profiling.unlinked_gpu_bytes.value))
