"""The kernels that add adapters to a step: beside each matrix one that shrinks its inputs to the rank and one that expands them.

Mirrors vllm/lora/ops (0.33): both kernels run once for all tokens, slices and adapters of a step, as Triton grids that CUDA graphs
hold; beside experts for the tokens of all data-parallel ranks. Their efficiencies are taken to be those of the GPU's other matrices in
bf16. Deliberate differences: all tokens of a step have an adapter, of which as many are in use as there are slots, tokens permitting;
and a step without any costs the same.
"""

from collections.abc import Mapping

from sim.specs.engine import EngineConfig
from sim.specs.hardware import HardwareProfile
from sim.specs.lora import AdapterLayout, AdapterPair
from sim.specs.model import Layer
from sim.steptime.operators import ACTIVATION_BYTES, Kernel, smooth_max

BUFFER_BYTES = 4  # what lies between the two kernels is fp32
LAUNCHES = 2


class LoraWork:
    """The adapters' kernels of some layers on one GPU."""

    def __init__(self, layers: Mapping[Layer, int], gpu: HardwareProfile, engine: EngineConfig) -> None:
        self._gpu = gpu
        self._max_loras = engine.max_loras
        self._pairs = AdapterLayout.of(engine).pairs(layers)
        self.num_launches = LAUNCHES * self._pairs.total()

    def kernels(self, num_tokens: int, num_all_tokens: int) -> list[Kernel]:
        """Each different pair's kernels over all layers, of a rank's tokens and, beside experts, of all ranks'."""
        return self._kernels({pair: num_all_tokens if pair.is_of_experts else num_tokens for pair in self._pairs})

    def own_kernels(self, num_tokens: int) -> list[Kernel]:
        """Those that are not beside experts."""
        return self._kernels({pair: num_tokens for pair in self._pairs if not pair.is_of_experts})

    def experts_s(self, num_all_tokens: int) -> float:
        """Seconds of those beside experts."""
        seconds = 0.0
        for kernel in self._kernels({pair: num_all_tokens for pair in self._pairs if pair.is_of_experts}):
            seconds += kernel.seconds
        return seconds

    def _kernels(self, num_tokens: Mapping[AdapterPair, int]) -> list[Kernel]:
        return [
            Kernel(self._pairs[pair] * kernel.seconds, kernel.bound)
            for pair, tokens in num_tokens.items()
            for kernel in self._pair(pair, tokens)
        ]

    def _pair(self, pair: AdapterPair, num_tokens: int) -> tuple[Kernel, Kernel]:
        rows = num_tokens * pair.num_used
        num_read = min(self._max_loras * pair.num_experts, rows)
        narrow_bytes = rows * pair.num_slices * pair.rank_a * BUFFER_BYTES
        shrink_bytes = ACTIVATION_BYTES * (rows * pair.in_features + num_read * pair.a_numbers) + narrow_bytes
        expand_bytes = ACTIVATION_BYTES * (2 * rows * pair.out_features + num_read * pair.b_numbers) + narrow_bytes
        return self._kernel(2 * rows * pair.a_numbers, shrink_bytes), self._kernel(
            2 * rows * pair.b_numbers, expand_bytes
        )

    def _kernel(self, num_flops: float, num_bytes: float) -> Kernel:
        gpu, fit = self._gpu, self._gpu.operators.gemm["bf16"]
        compute_s = num_flops / (gpu.peak_flops["bf16"] * fit.compute_efficiency)
        memory_s = num_bytes / (gpu.memory_bandwidth_bytes_per_s * fit.memory_efficiency)
        seconds = fit.launch_s + smooth_max(compute_s, memory_s, 2)
        return Kernel(seconds, "compute" if compute_s > memory_s else "memory")
