"""Steps of a model whose weights are in host memory in part: what they wait for the link between host and GPU.

Of matrices that are read where they are, a kernel takes at least their bytes over the link; experts are read as far as tokens
choose them, those of all data-parallel ranks. Of layers that are copied ahead, a step waits where a copy ends later than the layers before it; copies run one after
the other, and all that are under way have to end before the step does, as vLLM joins its copy stream (offloader/prefetch.py).
Deliberate difference: all layers of a step take equally long.
"""

from functools import cache

from sim.specs.engine import ResolvedEngine
from sim.specs.hardware import HardwareProfile
from sim.specs.model import Experts, ModelSpec
from sim.specs.sharding import experts_on_rank
from sim.specs.weight_offload import HostWeights
from sim.steptime.expert_routing import ExpertRouting
from sim.steptime.experts_work import load_of_busiest
from sim.steptime.operators import gemm_s, routed_experts
from sim.steptime.protocol import Agreement, StepShape
from sim.steptime.roofline import RooflineStepTime
from sim.steptime.waiting import WaitingStepTime


class OffloadedStepTime(WaitingStepTime):
    """A roofline's steps and what they wait for weights, over a link of so many bytes a second.

    Experts wait as on the GPU that all others wait for, of which every GPU keeps as many layers' in host memory.
    """

    def __init__(
        self,
        steps: RooflineStepTime,
        weights: HostWeights,
        model: ModelSpec,
        gpu: HardwareProfile,
        engine: ResolvedEngine,
        link_bytes_per_s: float,
        expert_routing: ExpertRouting = "skewed",
    ) -> None:
        super().__init__(steps, "host weights")
        self._weights = weights
        self._gpu = gpu
        self._engine = engine
        self._whole = {experts_on_rank(layer.experts, engine): layer.experts for layer in model.layers if layer.experts}
        self._link_bytes_per_s = link_bytes_per_s
        self._expert_routing = expert_routing
        self._read_s = cache(self._time_reads)

    def waits_s(self, shape: StepShape, step_s: float, agreement: Agreement | None = None) -> float:
        """For reads by tokens, an agreement's padding included; for copies by how long a layer takes."""
        weights = self._weights
        if not weights.copied:
            num_tokens = shape.num_tokens
            if agreement is None:
                return self._read_s(num_tokens, num_tokens * self._engine.data_parallel_size)
            return self._read_s(agreement.num_tokens or num_tokens, agreement.num_all_tokens)
        layer_s = (step_s - self._model.drafting_s(shape)) / weights.num_layers
        return copies_s(weights, layer_s, weights.layer_bytes / self._link_bytes_per_s)

    def _time_reads(self, num_tokens: int, num_all_tokens: int) -> float:
        """What reads over the link take longer than the kernels would from the GPU's own memory."""
        waits_s = 0.0
        for weight, count in self._weights.read.items():
            if isinstance(weight, Experts):
                num_bytes, kernel_s = self._experts_read(weight, float(num_all_tokens))
            else:
                num_bytes, kernel_s = float(weight.num_bytes), gemm_s(float(num_tokens), weight, self._gpu)
            waits_s += count * max(0.0, num_bytes / self._link_bytes_per_s - kernel_s)
        return waits_s

    def _experts_read(self, mine: Experts, tokens: float) -> tuple[float, float]:
        """Bytes of those that any token chose, and how long they take from the GPU's own memory."""
        load = load_of_busiest(tokens, self._whole[mine], self._engine, self._expert_routing)
        return load.distinct * mine.num_bytes / mine.num_experts, routed_experts(load, mine, self._gpu).seconds


def with_host_weights(
    steps: RooflineStepTime,
    weights: HostWeights | None,
    model: ModelSpec,
    gpu: HardwareProfile,
    engine: ResolvedEngine,
    link_bytes_per_s: float,
    expert_routing: ExpertRouting,
) -> RooflineStepTime | OffloadedStepTime:
    """The steps as they are where all weights are on the GPU."""
    if weights is None:
        return steps
    return OffloadedStepTime(steps, weights, model, gpu, engine, link_bytes_per_s, expert_routing)


def copies_s(weights: HostWeights, layer_s: float, copy_s: float) -> float:
    """How long a step waits for copies of `copy_s` each, if its layers take `layer_s` each.

    The first `prefetch_step` layers were copied before it began; each layer that has run makes way for the copy of another.
    """
    num_copied, ahead = len(weights.copied), weights.prefetch_step
    now_s = copied_s = 0.0
    ready_s = [0.0] * (num_copied + ahead)
    number = 0
    for place in range(weights.num_layers):
        is_copied = number < num_copied and weights.copied[number] == place
        if is_copied:
            now_s = max(now_s, ready_s[number])
        now_s += layer_s
        if is_copied:
            copied_s = ready_s[number + ahead] = max(copied_s, now_s) + copy_s
            number += 1
    return max(now_s, copied_s) - weights.num_layers * layer_s
