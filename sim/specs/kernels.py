"""Which vLLM versions have kernels for formats that not every GPU runs: 2:4 sparse weights, integers with quantised inputs.

Read from the released packages 0.8.5 to 0.33.0: `compressed_tensors.py` and its schemes, their `get_min_capability`, the
list of kernels in `kernels/linear/__init__.py`, and `sparse_scaled_mm_entry.cu` (Hopper only); for int8 on Blackwell vLLM's
pull requests 25935 and 54316.
"""

from collections.abc import Iterator

from sim.errors import ConfigError
from sim.specs.hardware import HardwareProfile
from sim.specs.model import ModelSpec, WeightFormat
from sim.specs.releases import parse_version

HOPPER = "9.0"
BLACKWELL = {"10.0", "10.3", "12.0", "12.1"}
MARLIN_2_OF_4 = {"8.0", "8.6", "8.9", HOPPER, "10.0", "10.3", "12.0"}  # compute capability 8.0 and up
NO_MARLIN_2_OF_4 = (0, 15, 0)  # 0.14.1 has the kernel for 4-bit 2:4 weights, 0.16.0 has not; 0.15 was not read
NO_2_OF_4 = (0, 19, 0)  # the first without any (vLLM pull request 36799)
W4A8_FP8 = (0, 10, 2)  # the first with CUTLASS's W4A8 kernel
W4A8_FP8_EXPERTS = (0, 13, 0)
W4A8_INT8_APART = (0, 31, 0)  # the first that tells int8 inputs from fp8 ones; before, both ran in the fp8 kernel
W4A8_SCALE_BITS = 16 / 128  # groups of 128, symmetric: all that the kernel takes


def check_kernels(model: ModelSpec, gpu: HardwareProfile, version: str) -> None:
    """Raises ConfigError where this vLLM has no kernel on this GPU for a format of the model's weights."""
    for weight, is_experts in dict.fromkeys(_formats(model)):
        reason = _two_of_four(weight, gpu, version, is_experts=is_experts) if weight.is_2_of_4 else None
        reason = _narrow_integers(weight, gpu, version, is_experts=is_experts) if weight.activations else reason
        reason = _int8(gpu) if weight.name == "int8" and weight.compute == "int8" and not is_experts else reason
        if reason:
            raise ConfigError(f"{model.name} stores weights as {weight.name}: {reason}.")


def _formats(model: ModelSpec) -> Iterator[tuple[WeightFormat, bool]]:
    for layer in model.distinct_layers:
        yield from ((linear.weight, False) for linear in layer.linears)
        if layer.experts:
            yield layer.experts.weight, True


def _two_of_four(weight: WeightFormat, gpu: HardwareProfile, version: str, *, is_experts: bool) -> str | None:
    asked, is_marlin = parse_version(version), weight.compute == "bf16" and weight.name.startswith("int")
    if asked >= (NO_MARLIN_2_OF_4 if is_marlin else NO_2_OF_4):
        last = "0.14" if is_marlin else "0.18"
        return f"vLLM {version} has no kernels for 2:4 sparse weights, {last} was the last; use the dense checkpoint"
    if is_experts:
        return "vLLM has no 2:4 sparse kernel for routed experts; use the dense checkpoint"
    if gpu.compute_capability not in (MARLIN_2_OF_4 if is_marlin else {HOPPER}):
        needed = "NVIDIA GPUs of compute capability 8.0 and up" if is_marlin else "Hopper (compute capability 9.0)"
        return f"vLLM's 2:4 sparse kernels run on {needed}, got {gpu.name} ({gpu.compute_capability})"
    return None


def _int8(gpu: HardwareProfile) -> str | None:
    """vLLM hands such linear layers to CUTLASS, which has no int8 kernel from Blackwell on; experts go to Triton."""
    if gpu.compute_capability not in BLACKWELL:
        return None
    return f"vLLM's kernel for 8-bit integers and inputs does not run on Blackwell, got {gpu.name}; use an FP8 checkpoint, or W8A16"


def _narrow_integers(weight: WeightFormat, gpu: HardwareProfile, version: str, *, is_experts: bool) -> str | None:
    asked, first = parse_version(version), W4A8_FP8_EXPERTS if is_experts else W4A8_FP8
    runs_in_fp8 = {"fp8"} if asked >= W4A8_INT8_APART else {"fp8", "int8"}
    if weight.activations not in runs_in_fp8:
        return (
            f"vLLM {version} has no GPU kernel that multiplies them with {weight.activations} inputs by default (it "
            "leaves the inputs in 16 bits, or fails); use a W4A16 checkpoint, or W8A8"
        )
    if asked < first:
        since = ".".join(map(str, first))
        return f"vLLM has a kernel for them since {since}, got vllm_version {version}; choose a newer one"
    if gpu.compute_capability != HOPPER:
        return f"vLLM's W4A8 kernel runs on Hopper (compute capability 9.0), got {gpu.name} ({gpu.compute_capability})"
    if (weight.bits, weight.scale_bits) != (4, W4A8_SCALE_BITS):
        return "vLLM's W4A8 kernel takes symmetric 4-bit weights in groups of 128 only"
    return None
