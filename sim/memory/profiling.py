"""What vLLM finds in use on a GPU before it sizes the KV cache: weights, activation peak, non-torch memory, graphs."""

import math
from dataclasses import dataclass

from sim.memory.activations import ActivationPeak, activation_peak, activation_shape
from sim.memory.cuda_graphs import GraphCount, graph_bytes, graph_count
from sim.memory.parameters import ProfilingParameters, memory_parameters
from sim.memory.weights import Part, weight_parts
from sim.specs.engine import ResolvedEngine
from sim.specs.hardware import HardwareProfile
from sim.specs.model import ModelSpec


@dataclass(frozen=True, slots=True)
class Consumption:
    """Bytes per GPU; `requested_bytes` is the share of `total_bytes` that gpu_memory_utilization allows.

    `graph_estimate_bytes` is what vLLM subtracts for CUDA graphs, `graph_bytes` what they will take.
    """

    total_bytes: int
    requested_bytes: int
    weights: tuple[Part, ...]
    activation: ActivationPeak
    non_torch_bytes: int
    graphs: GraphCount
    graph_bytes: int
    graph_estimate_bytes: int

    @property
    def weights_bytes(self) -> int:
        return sum(part.num_bytes for part in self.weights)

    @property
    def used_bytes(self) -> int:
        """What is subtracted from `requested_bytes`."""
        return self.weights_bytes + self.activation.total_bytes + self.non_torch_bytes + self.graph_estimate_bytes

    @property
    def left_bytes(self) -> int:
        """What vLLM logs as available KV cache memory; negative when the rest does not fit."""
        return self.requested_bytes - self.used_bytes


def consumption(model: ModelSpec, gpu: HardwareProfile, engine: ResolvedEngine) -> Consumption:
    """One GPU of `engine.tensor_parallel_size` equal ones; the formulas are vLLM's since 0.11."""
    parameters = memory_parameters()
    profiling = parameters.profiling_for(engine.vllm_version)
    graphs = graph_count(engine)
    estimate = graph_bytes(model, graphs.total, parameters.graphs_estimated) if engine.subtracts_graph_memory else 0
    shape = activation_shape(model, engine.tensor_parallel_size)
    return Consumption(
        total_bytes=gpu.memory_bytes,
        requested_bytes=math.ceil(gpu.memory_bytes * engine.gpu_memory_utilization),
        weights=weight_parts(model, engine.tensor_parallel_size),
        activation=activation_peak(shape, engine.max_num_batched_tokens, engine.max_num_seqs, profiling),
        non_torch_bytes=non_torch_bytes(gpu, engine.tensor_parallel_size, profiling),
        graphs=graphs,
        graph_bytes=graph_bytes(model, graphs.total, parameters.graphs_taken),
        graph_estimate_bytes=estimate,
    )


def non_torch_bytes(gpu: HardwareProfile, tensor_parallel_size: int, profiling: ProfilingParameters) -> int:
    """What CUDA libraries, NCCL and all-reduce buffers take beside PyTorch."""
    parallel = tensor_parallel_size > 1
    base = profiling.non_torch_parallel_bytes if parallel else profiling.non_torch_bytes
    return int(base.value + profiling.unlinked_gpu_bytes.value * (gpu.num_linked_gpus == 1))
