"""From hidden states to tokens: logits of the sampled rows, gathered from all GPUs, and the sampler."""

from sim.specs.hardware import HardwareProfile
from sim.specs.model import ModelSpec
from sim.specs.sampling import Truncation
from sim.specs.stages import Stage
from sim.steptime.links import all_gather_s
from sim.steptime.operators import ACTIVATION_BYTES, elementwise_s, served_gemm
from sim.steptime.parts import Bound
from sim.units import US

# The sampler: ten small kernels that read every fp32 logit twice. Measured with vLLM 0.19 on an RTX PRO 6000: 26 us for
# 3 rows of 128,256 logits, 128 us for 208.
SAMPLER_KERNELS = 10
SAMPLER_BYTES_PER_LOGIT = 8
# Truncation without a sort, seconds and bytes moved per logit: vllm-project/vllm #33538 and #40376 give 0.18 ms for 48 rows
# of 32,768 logits and 2.0 ms for 512 of 131,072 (Triton), 0.14 ms for 128 and 0.37 ms for 512 of 131,072 (FlashInfer).
TRUNCATION_KERNELS = {"triton": (150 * US, 94.0), "flashinfer": (60 * US, 16.0)}


class SamplingWork:
    """One step's sampling on every GPU of the last stage, and nothing on others.

    `truncation` says how top-p and top-k are served, None where nothing asks for them.
    """

    def __init__(
        self,
        model: ModelSpec,
        gpu: HardwareProfile,
        tensor_parallel_size: int,
        truncation: Truncation | None,
        stage: Stage | None = None,
    ) -> None:
        self._samples = stage is None or stage.is_last
        self._gpu = gpu
        self._num_gpus = tensor_parallel_size
        self._head = model.output_head.per_rank(tensor_parallel_size)
        self._vocab_size = model.vocab_size
        self._truncation = truncation

    def seconds(self, num_sampled: int) -> float:
        """Head, gathering, sampler and truncation for so many rows; nothing where no row is sampled."""
        return sum((seconds for _, seconds in self.kernels(num_sampled)), 0.0)

    def kernels(self, num_sampled: int) -> list[tuple[Bound, float]]:
        """The bound and the seconds of each."""
        if num_sampled == 0 or not self._samples:
            return []
        gpu, num_logits = self._gpu, float(num_sampled * self._head.out_features * self._num_gpus)
        seconds, bound = served_gemm(float(num_sampled), self._head, gpu)
        found: list[tuple[Bound, float]] = [(bound, seconds)]
        if self._num_gpus > 1:
            found.append(("link", all_gather_s(num_logits * ACTIVATION_BYTES, self._num_gpus, gpu)))
        sampler_s = elementwise_s(num_logits * SAMPLER_BYTES_PER_LOGIT / SAMPLER_KERNELS, gpu)
        return [*found, ("memory", SAMPLER_KERNELS * sampler_s), ("memory", self._truncation_s(num_sampled))]

    def _truncation_s(self, num_sampled: int) -> float:
        if self._truncation is None:
            return 0.0
        fit = self._gpu.operators.sampler
        sort = (fit.sort_entry_s * self._vocab_size, fit.sort_bytes_per_logit)
        fixed_s, bytes_per_logit = TRUNCATION_KERNELS.get(self._truncation, sort)
        num_bytes = num_sampled * self._vocab_size * bytes_per_logit
        return fixed_s + num_bytes / self._gpu.memory_bandwidth_bytes_per_s
