"""Steps whose KV cache is in host memory, a few layers at a time on the GPU: layer-wise offload, after nano-vllm.

A prompt is computed layer by layer, and each layer's K and V are written out before the next one begins. A decode reads those of
every layer into a ring of buffers, one copy after the other, each as soon as the layer that had its buffer is done; before a
layer attends, it joins what was read with what was decoded. Deliberate difference: what was decoded lately, up to a block, is on the
GPU already and is read all the same.
"""

from typing import NamedTuple

from sim.specs.hardware import HardwareProfile
from sim.steptime.operators import elementwise_s
from sim.steptime.protocol import Agreement, StepShape
from sim.steptime.roofline import RooflineStepTime
from sim.steptime.waiting import WaitingStepTime


class HostKV(NamedTuple):
    """K and V in host memory: bytes of a token in one of `num_layers`, and the layers that a ring on the GPU holds."""

    num_layers: int
    token_bytes: int
    num_kv_buffers: int


class LayerwiseStepTime(WaitingStepTime):
    """A roofline's steps of one request at a time, and what they wait for its K and V."""

    def __init__(self, model: RooflineStepTime, kv: HostKV, gpu: HardwareProfile, link_bytes_per_s: float) -> None:
        super().__init__(model, "KV in host memory")
        self._kv = kv
        self._gpu = gpu
        self._link_bytes_per_s = link_bytes_per_s

    def waits_s(self, shape: StepShape, step_s: float, agreement: Agreement | None = None) -> float:  # noqa: ARG002 - no ranks
        """For writing what a prompt's chunks computed; for reading, and joining, what decodes attend to."""
        kv = self._kv
        written_s = shape.num_chunk_tokens * kv.num_layers * kv.token_bytes / self._link_bytes_per_s
        if not shape.num_decodes:
            return written_s
        context_bytes = shape.decode_context_tokens * kv.token_bytes
        joining_s = elementwise_s(2.0 * context_bytes, self._gpu)
        layer_s, copy_s = step_s / kv.num_layers + joining_s, context_bytes / self._link_bytes_per_s
        return written_s + ring_s(kv, layer_s, copy_s) - step_s


def ring_s(kv: HostKV, layer_s: float, copy_s: float) -> float:
    """How long the layers take, each `layer_s` once its copy of `copy_s` is there; with one buffer nothing overlaps."""
    if kv.num_kv_buffers == 1:
        return kv.num_layers * (layer_s + copy_s)
    return max(kv.num_layers * copy_s + layer_s, copy_s + kv.num_layers * layer_s)
