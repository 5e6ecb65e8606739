"""CUDA-graph memory as the original autotuning design estimates it: a tenth of the weights a graph, more for larger ones.

Kept for comparison: it is two orders of magnitude above what vLLM logs, as docs/memory.md shows.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

GraphMemoryModel = Literal["measured", "design"]


@dataclass(frozen=True, slots=True)
class AutotuningParameters:
    """The design's constants under its own names: graph memory, bounds of memory utilization, weights of its scores."""

    graph_memory_overhead_base_ratio: float = 0.1
    graph_memory_batch_scaling_factor: float = 0.02
    compilation_memory_multiplier_full: float = 1.8
    compilation_memory_multiplier_piecewise: float = 1.0
    compilation_level: Literal["FULL", "PIECEWISE"] = "PIECEWISE"
    min_gpu_memory_utilization: float = 0.8
    max_gpu_memory_utilization: float = 0.98
    throughput_batch_weight: float = 0.7
    throughput_graph_weight: float = 0.3
    latency_graph_weight: float = 0.8
    latency_batch_weight: float = 0.2
    fragmentation_overhead_factor: float = 1.05
    min_kv_cache_ratio: float = 0.05

    @property
    def compilation_memory_multiplier(self) -> float:
        if self.compilation_level == "FULL":
            return self.compilation_memory_multiplier_full
        return self.compilation_memory_multiplier_piecewise


DESIGN = AutotuningParameters()


def design_graph_bytes(weights_bytes: int, capture_sizes: Iterable[int], parameters: AutotuningParameters) -> int:
    """The sum over capture sizes of weights x base ratio x (1 + size x batch scaling) x the level's multiplier."""
    base = weights_bytes * parameters.graph_memory_overhead_base_ratio * parameters.compilation_memory_multiplier
    return int(sum(base * (1 + size * parameters.graph_memory_batch_scaling_factor) for size in capture_sizes))
