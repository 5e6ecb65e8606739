"""CUDA-graph memory as the original autotuning design estimates it: a tenth of the weights a graph, more for larger ones.

Kept for comparison: it is two to three orders of magnitude above what vLLM logs, as docs/memory.md shows.
"""

from collections.abc import Iterable
from typing import Literal

from sim.specs.autotuning import AutotuningParameters

GraphMemoryModel = Literal["measured", "design"]
DESIGN = AutotuningParameters()


def design_graph_bytes(weights_bytes: int, capture_sizes: Iterable[int], parameters: AutotuningParameters) -> int:
    """The sum over capture sizes of weights x base ratio x (1 + size x batch scaling) x the level's multiplier."""
    base = weights_bytes * parameters.graph_memory_overhead_base_ratio * parameters.compilation_memory_multiplier
    return int(sum(base * (1 + size * parameters.graph_memory_batch_scaling_factor) for size in capture_sizes))
