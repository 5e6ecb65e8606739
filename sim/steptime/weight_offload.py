"""Steps of a model whose weights are in host memory in part: what they wait for the link between host and GPU.

Of matrices that are read where they are, a kernel takes at least their bytes over the link; experts are read as far as tokens
choose them. Of layers that are copied ahead, a step waits where a copy ends later than the layers before it; copies run one after
the other, and all that are under way have to end before the step does, as vLLM joins its copy stream (offloader/prefetch.py).
Deliberate difference: all layers of a step take equally long.
"""

from functools import cache

from sim.specs.hardware import HardwareProfile
from sim.specs.model import Experts
from sim.specs.weight_offload import HostWeights
from sim.steptime.expert_routing import ExpertRouting, expected_distinct_experts
from sim.steptime.operators import experts_s, gemm_s
from sim.steptime.protocol import StepShape
from sim.steptime.roofline import RooflineStepTime
from sim.steptime.waiting import WaitingStepTime


class OffloadedStepTime(WaitingStepTime):
    """A roofline's steps and what they wait for weights, over a link of so many bytes a second."""

    def __init__(
        self,
        model: RooflineStepTime,
        weights: HostWeights,
        gpu: HardwareProfile,
        link_bytes_per_s: float,
        expert_routing: ExpertRouting = "skewed",
    ) -> None:
        super().__init__(model, "host weights")
        self._weights = weights
        self._gpu = gpu
        self._link_bytes_per_s = link_bytes_per_s
        self._expert_routing = expert_routing
        self._read_s = cache(self._time_reads)

    def waits_s(self, shape: StepShape, step_s: float) -> float:
        """For reads by tokens; for copies by how long a layer takes."""
        weights = self._weights
        if not weights.copied:
            return self._read_s(shape.num_tokens)
        layer_s = (step_s - self._model.drafting_s(shape)) / weights.num_layers
        return copies_s(weights, layer_s, weights.layer_bytes / self._link_bytes_per_s)

    def _time_reads(self, num_tokens: int) -> float:
        """What reads over the link take longer than the kernels would from the GPU's own memory."""
        rows, gpu, waits_s = float(num_tokens), self._gpu, 0.0
        for weight, count in self._weights.read.items():
            if isinstance(weight, Experts):
                num_read = expected_distinct_experts(rows, weight, self._expert_routing)
                num_bytes = num_read * weight.num_bytes / weight.num_experts
                kernel_s = experts_s(rows, weight, gpu, self._expert_routing)
            else:
                num_bytes, kernel_s = float(weight.num_bytes), gemm_s(rows, weight, gpu)
            waits_s += count * max(0.0, num_bytes / self._link_bytes_per_s - kernel_s)
        return waits_s


def with_host_weights(
    steps: RooflineStepTime,
    weights: HostWeights | None,
    gpu: HardwareProfile,
    link_bytes_per_s: float,
    expert_routing: ExpertRouting,
) -> RooflineStepTime | OffloadedStepTime:
    """The steps as they are where all weights are on the GPU."""
    if weights is None:
        return steps
    return OffloadedStepTime(steps, weights, gpu, link_bytes_per_s, expert_routing)


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
