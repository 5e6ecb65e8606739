"""How vLLM lays experts of MXFP4 out on a GPU: zeros up to whole tiles of their kernel, scales and biases as it reads them.

Read from the released packages 0.10.1 to 0.33.0: quantization/mxfp4.py, in newer ones fused_moe/oracle/mxfp4.py, and the layouts of
triton_kernels (hopper_value.py, hopper_scale.py) that their wheels bring along.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, NamedTuple

from sim.specs.engine import ResolvedEngine
from sim.specs.hardware import HardwareProfile
from sim.specs.kernels import HOPPER
from sim.specs.model import Experts, ceil_div
from sim.specs.releases import parse_version

MXFP4 = "mxfp4"
B200 = "10."  # how compute capabilities of B200 and B300 begin
WEIGHTS_A_BYTE, WEIGHTS_A_SCALE = 2, 32

BRINGS_TRITON_KERNELS = (0, 12, 0)  # wheels before have none, and Hopper gets Marlin (vllm-project/vllm #28788)
WIDE_VALUES, NARROW_VALUES_AGAIN = (0, 17, 0), (0, 22, 0)  # triton_kernels 3.6.0, between 3.5.0 and 3.5.1
FREES_SCALES = (0, 25, 0)  # before, Triton's scales lie beside those that were loaded (#46549)
NARROW_FLASHINFER = (0, 27, 0)


class Tile(NamedTuple):
    """Of a matrix: outputs, and weights of each."""

    rows: int
    columns: int


UNPADDED = Tile(1, 1)


class Mxfp4Layout(NamedTuple):
    """A kernel's. Sizes of an expert are rounded up first, then packed weights to tiles of `values`, and scales to those of `scales`."""

    kernel: Literal["marlin", "triton", "flashinfer", "cpu"]
    intermediate_multiple: int
    hidden_multiple: int
    values: Tile = UNPADDED
    scales: Tile = UNPADDED
    keeps_loaded_scales: bool = False
    bias_bytes: int = 4

    @classmethod
    def of(cls, gpu: HardwareProfile, engine: ResolvedEngine) -> "Mxfp4Layout":
        """That of the kernel which vLLM takes, or which `moe_backend` names."""
        version = parse_version(engine.vllm_version)
        if gpu.architecture == "CPU":
            return cls("cpu", 32, 32)
        if engine.moe_backend != "marlin" and gpu.compute_capability.startswith(B200):
            return cls("flashinfer", 128 if version >= NARROW_FLASHINFER else 256, 256)
        if engine.moe_backend != "marlin" and gpu.compute_capability == HOPPER and version >= BRINGS_TRITON_KERNELS:
            is_wide = WIDE_VALUES <= version < NARROW_VALUES_AGAIN
            values = Tile(64, 128) if is_wide else Tile(16, 64)
            return cls("triton", 64, 1, values, Tile(256, 64), keeps_loaded_scales=version < FREES_SCALES)
        return cls("marlin", 128, 256, bias_bytes=2)

    def padded(self, experts: Experts) -> Experts:
        """With sizes as the kernel reads and multiplies them, zeros like weights."""
        return replace(
            experts,
            intermediate_size=_up_to(experts.intermediate_size, self.intermediate_multiple),
            hidden_size=_up_to(experts.hidden_size, self.hidden_multiple),
        )

    def num_bytes(self, experts: Experts) -> int:
        """What one GPU's share of a layer's experts takes."""
        padded = self.padded(experts)
        num_bytes = self.bias_bytes * padded.num_biases_per_expert
        for rows, columns in _matrices(padded):
            num_bytes += _num_weights(rows, columns, self.values) // WEIGHTS_A_BYTE
            num_bytes += _num_weights(rows, columns, self.scales) // WEIGHTS_A_SCALE
            num_bytes += rows * columns // WEIGHTS_A_SCALE * self.keeps_loaded_scales
        return experts.num_experts * num_bytes


def _matrices(experts: Experts) -> Iterator[Tile]:
    """Gate and up are one."""
    yield Tile((experts.num_matrices - 1) * experts.intermediate_size, experts.hidden_size)
    yield Tile(experts.hidden_size, experts.intermediate_size)


def _num_weights(rows: int, columns: int, tile: Tile) -> int:
    return _up_to(rows, tile.rows) * _up_to(columns, tile.columns)


def _up_to(size: int, multiple: int) -> int:
    return ceil_div(size, multiple) * multiple
