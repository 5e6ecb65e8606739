"""How long each kernel takes on one GPU: a smooth maximum of compute and memory time, and a launch.

Forms and parameters were fitted to measured kernels; a CUDA graph's cost per kernel is the fitted launch time. Times
are seconds, sizes bytes.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

from sim.specs.hardware import HardwareProfile
from sim.specs.kernels import HOPPER
from sim.specs.model import BF16, Attention, Experts, Linear, WeightFormat
from sim.specs.mxfp4 import B200, MXFP4
from sim.specs.operator_fits import ComputeDtype
from sim.steptime.expert_routing import TILES, ExpertsLoad

ACTIVATION_BYTES = 2  # bf16 between kernels
TILE_ROWS: Final = 128
MARLIN_ON_HOPPER = (
    0.75  # of the peak at best, as it does without `wgmma` (vLLM pull request 7174, which brings Machete for integers)
)
FP32_FLOPS_OF_SM: Mapping[str, float] = {
    "7": 2.0e11,
    "8.0": 1.8e11,
    "8.6": 4.3e11,
    "8.9": 6.4e11,
    "9": 5.1e11,
    "10": 5.1e11,
    "12": 6.6e11,
}
"""By compute capability: what NVIDIA's data sheets give for 32 bits without tensor cores, over multiprocessors. Elsewhere that of Hopper."""
WEIGHT_ONLY_BITS = 4
BY_MARLIN = " by Marlin"
QUANTISED_BYTES: dict[ComputeDtype, float] = {"fp8": 1.0, "int8": 1.0, "fp4": 0.5}


class Kernel(NamedTuple):
    """Seconds of a kernel, and the larger term of its roofline."""

    seconds: float
    bound: Literal["compute", "memory"]


def smooth_max(first: float, second: float, sharpness: float) -> float:
    """The p-norm of two times: the larger one, and up to 2^(1/p) more where they are alike.

    With `math.pow`, which compiled code calls without a Python float, as it does not for `**`.
    """
    return math.pow(math.pow(first, sharpness) + math.pow(second, sharpness), 1.0 / sharpness)


def between(points: Sequence[tuple[float, float]], x: float) -> float:
    """The value at `x` of the line through points that ascend; that of the nearest one outside them."""
    index = bisect_left(points, (x, 0.0))
    if index == 0 or index == len(points):
        return points[min(index, len(points) - 1)][1]
    (low, at_low), (high, at_high) = points[index - 1], points[index]
    return at_low + (at_high - at_low) * (x - low) / (high - low)


def compute_dtype(weight: WeightFormat, gpu: HardwareProfile) -> ComputeDtype:
    """What the weight is multiplied in; a GPU without that dtype unpacks it to bf16, as vLLM's Marlin kernels do."""
    return weight.compute if weight.compute in gpu.peak_flops else "bf16"


def _peak_flops(weight: WeightFormat, gpu: HardwareProfile) -> float:
    """Of dense operations: sparse tensor cores skip the half that 2:4 weights lack (NVIDIA's A100 whitepaper); 32 bits have none."""
    if weight.bits > BF16.bits:
        return gpu.num_sms * _fp32_flops_of_sm(gpu.compute_capability)
    peak = gpu.peak_flops[compute_dtype(weight, gpu)] * (MARLIN_ON_HOPPER if _is_marlin_on_hopper(weight, gpu) else 1)
    return 2 * peak if weight.is_2_of_4 else peak


def _fp32_flops_of_sm(compute_capability: str) -> float:
    of = (flops for prefix, flops in FP32_FLOPS_OF_SM.items() if compute_capability.startswith(prefix))
    return next(of, FP32_FLOPS_OF_SM["9"])


def _is_marlin_on_hopper(weight: WeightFormat, gpu: HardwareProfile) -> bool:
    """Narrow floats that are multiplied as 16-bit ones; integers have Machete there, which is as fast as 16-bit weights."""
    is_narrow_float = weight.bits < BF16.bits and not weight.name.startswith("int")
    return is_narrow_float and gpu.compute_capability == HOPPER and compute_dtype(weight, gpu) == "bf16"


def gemm_s(rows: float, linear: Linear, gpu: HardwareProfile) -> float:
    """Seconds of `gemm`."""
    return gemm(rows, linear, gpu).seconds


def gemm(rows: float, linear: Linear, gpu: HardwareProfile) -> Kernel:
    """So many rows times a matrix as one GPU holds it; their dynamic quantisation included where the dtype needs it."""
    if linear.weight.unpacked_first and rows > 1:
        unpacked = gemm(rows, replace(linear, weight=BF16), gpu)
        return Kernel(
            unpacked.seconds + _unpacking_s(linear.in_features * linear.out_features, linear.weight, gpu),
            unpacked.bound,
        )
    dtype = compute_dtype(linear.weight, gpu)
    fit, bandwidth = gpu.operators.gemm[dtype], gpu.memory_bandwidth_bytes_per_s
    num_in, num_out = linear.in_features, linear.out_features
    input_bytes = QUANTISED_BYTES.get(dtype, ACTIVATION_BYTES)
    activation_bytes = rows * (num_in * input_bytes + num_out * ACTIVATION_BYTES)
    memory_s = (num_in * num_out * _bytes_per_weight(linear.weight) + activation_bytes) / (
        bandwidth * fit.memory_efficiency
    )
    num_waves = -(-rows // TILE_ROWS) * -(-num_out // TILE_ROWS) / gpu.num_sms
    ideal_compute_s = 2 * rows * num_in * num_out / (_peak_flops(linear.weight, gpu) * fit.compute_efficiency)
    compute_s = ideal_compute_s * (1 + fit.wave_penalty / num_waves)
    seconds = fit.launch_s + smooth_max(compute_s, memory_s, 2) + _quantise_s(rows * num_in, dtype, gpu)
    if fit.by_rows:
        seconds *= between(fit.by_rows, rows)
    return Kernel(seconds, "compute" if compute_s > memory_s else "memory")


def served_gemm(rows: float, linear: Linear, gpu: HardwareProfile, *, is_fused: bool = False) -> Kernel:
    """`gemm` as a server runs it, whose tables quantise inputs of 8 bits by kernels of their own, and those of 4 bits not at all.

    A server has one kernel for that. Inputs of fp8 are quantised by whatever kernel writes them where that `is_fused`.
    """
    kernel, dtype = gemm(rows, linear, gpu), compute_dtype(linear.weight, gpu)
    elementwise = gpu.operators.elementwise
    if dtype == "fp4":
        return Kernel(kernel.seconds + elementwise.launch_s, kernel.bound)
    if dtype not in QUANTISED_BYTES:
        return kernel
    num_inputs = rows * linear.in_features
    bare_s = kernel.seconds - _quantise_s(num_inputs, dtype, gpu)
    if not is_fused:
        return Kernel(bare_s + _moved_s(num_inputs * (ACTIVATION_BYTES + QUANTISED_BYTES[dtype]), gpu), kernel.bound)
    launch_s = min(elementwise.launch_s, gpu.operators.gemm[dtype].launch_s)
    no_longer_written_s = _moved_s(num_inputs * (ACTIVATION_BYTES - QUANTISED_BYTES[dtype]), gpu)
    return Kernel(bare_s - launch_s - no_longer_written_s, kernel.bound)


def _moved_s(num_bytes: float, gpu: HardwareProfile) -> float:
    """Bytes through an elementwise kernel, without its launch."""
    return num_bytes / (gpu.memory_bandwidth_bytes_per_s * gpu.operators.elementwise.memory_efficiency)


def _unpacking_s(num_weights: int, weight: WeightFormat, gpu: HardwareProfile) -> float:
    """A kernel that reads so many weights and writes them in 16 bits."""
    return elementwise_s(num_weights * (_bytes_per_weight(weight) + ACTIVATION_BYTES), gpu)


def _quantise_s(num_inputs: float, dtype: ComputeDtype, gpu: HardwareProfile) -> float:
    """What tables have beside a multiplication for the kernels that quantise its inputs."""
    if dtype not in QUANTISED_BYTES:
        return 0 * num_inputs
    moved_bytes = num_inputs * (ACTIVATION_BYTES + QUANTISED_BYTES[dtype])
    return moved_bytes / (gpu.memory_bandwidth_bytes_per_s * gpu.operators.gemm[dtype].quantise_efficiency)


@dataclass(frozen=True, slots=True)
class DecodeAttention:
    """Decode attention of a fixed set of requests, as a function of their summed context.

    Only the sum matters: how contexts are spread over requests moves the time by 2 % in the median.
    `most_context_tokens` is what a window lets the requests read together, if there is one.
    """

    fixed_s: float
    memory_base_s: float
    memory_per_token_s: float
    compute_per_token_s: float
    most_context_tokens: float | None


def decode_attention(
    num_requests: float,
    attention: Attention,
    kv_dtype_bytes: float,
    gpu: HardwareProfile,
    num_queries: float | None = None,
) -> DecodeAttention:
    """One layer's decode attention, of heads as one GPU holds them. A linear layer reads and writes its state instead.

    `num_queries` tokens ask, one a request if not said: a request's queries share what is read of its context, and each
    computes over all of it.
    An MLA kernel reads the latent once for all heads, and runs the heads as rows of a tile: compute-bound, it reaches
    what prefill kernels do with common heads (FlashMLA reports 660 TFLOPS on H800), not what a decode kernel of few heads per KV head does.
    """
    fits, bandwidth = gpu.operators, gpu.memory_bandwidth_bytes_per_s
    fit = fits.decode_attention_fp8 if kv_dtype_bytes == 1 else fits.decode_attention
    is_latent = attention.kind == "mla"
    query_dim, value_dim = _latent_dims(attention) if is_latent else (attention.head_dim, attention.v_head_dim)
    efficiency = fits.prefill_attention.efficiency_of_common_heads if is_latent else fit.compute_efficiency
    flops_per_token = 2 * attention.num_heads * (query_dim + value_dim)
    queries_each = 1.0 if num_queries is None else num_queries / num_requests
    if attention.kind == "linear":
        request_bytes, flops_per_token = 2.0 * attention.state_bytes, 0
    else:
        request_bytes = ACTIVATION_BYTES * attention.num_heads * (query_dim + value_dim) * queries_each
    num_waves = num_requests * attention.num_kv_heads / gpu.num_sms
    reads_at_most = attention.window or attention.index_topk
    return DecodeAttention(
        fixed_s=fit.launch_s + fit.per_wave_s * num_waves,
        memory_base_s=num_requests * request_bytes / (bandwidth * fit.memory_efficiency),
        memory_per_token_s=attention.kv_numbers_per_token * kv_dtype_bytes / (bandwidth * fit.memory_efficiency),
        compute_per_token_s=queries_each * flops_per_token / (gpu.peak_flops["bf16"] * efficiency),
        most_context_tokens=num_requests * reads_at_most if reads_at_most else None,
    )


def decode_attention_s(work: DecodeAttention, context_tokens: float) -> float:
    """Seconds at that sum of contexts, which may not exceed `most_context_tokens`; without `fixed_s`."""
    memory_s = work.memory_base_s + work.memory_per_token_s * context_tokens
    return smooth_max(memory_s, work.compute_per_token_s * context_tokens, 3)


EXPERTS_OVERLAP = 1.6
"""How well reading experts hides behind multiplying them, less well than with one matrix: of 1.3, 1.6 and 2, by the medians of 17 tables on shapes held out."""


def routed_experts(load: ExpertsLoad, experts: Experts, gpu: HardwareProfile) -> Kernel:
    """The routed experts of one layer as one GPU holds them; weights are read only of those that any token chose."""
    if experts.weight.unpacked_first:
        unpacked = routed_experts(load, replace(experts, weight=BF16), gpu)
        all_weights = experts.num_experts * experts.num_weights_per_expert
        return Kernel(unpacked.seconds + _unpacking_s(all_weights, experts.weight, gpu), unpacked.bound)
    dtype = compute_dtype(experts.weight, gpu)
    fits = gpu.operators
    fit = fits.experts_weight_only if _is_weight_only(experts.weight, gpu) else fits.experts[dtype]
    bandwidth = gpu.memory_bandwidth_bytes_per_s
    weight_bytes = load.distinct * experts.num_weights_per_expert * _bytes_per_weight(experts.weight)
    weights_s = weight_bytes / (bandwidth * fit.memory_efficiency)
    if load.tile_rows > TILES[0]:
        weights_s *= 1 + fit.large_tile_reads
    flops = 2 * load.multiplied * experts.num_weights_per_expert
    compute_s = flops / (gpu.peak_flops[dtype] * fit.compute_efficiency)
    num_rows = load.routed + fit.padded_rows * load.distinct
    moves_s = fit.row_moves * num_rows * ACTIVATION_BYTES * experts.hidden_size / bandwidth
    moves_s += fit.token_s * load.tokens
    seconds = fit.launch_s + smooth_max(weights_s, compute_s, EXPERTS_OVERLAP) + moves_s
    return Kernel(seconds, "compute" if compute_s > weights_s + moves_s else "memory")


def by_marlin(weight: WeightFormat) -> WeightFormat:
    """The same weight as Marlin multiplies it: unpacked to 16 bits, whatever other kernels the GPU has for it."""
    return replace(weight, name=f"{weight.name}{BY_MARLIN}", compute="bf16")


def _is_weight_only(weight: WeightFormat, gpu: HardwareProfile) -> bool:
    """Whether Marlin unpacks 4-bit weights of experts to multiply them as 16-bit ones.

    MXFP4 has Triton's kernels on Hopper and FlashInfer's on B200 (vLLM's mxfp4.py), which no table times; prompts that were measured say that
    Triton's multiply as fast as those of 16 bits (benchmarks/mxfp4.py).
    """
    is_narrow = weight.bits <= WEIGHT_ONLY_BITS and compute_dtype(weight, gpu) == "bf16"
    has_its_own = weight.name == MXFP4 and gpu.compute_capability.startswith((HOPPER, B200))
    return is_narrow and not has_its_own


def elementwise_s(moved_bytes: float, gpu: HardwareProfile) -> float:
    """A norm, rotary embedding or activation that reads and writes so many bytes."""
    return gpu.operators.elementwise.launch_s + _moved_s(moved_bytes, gpu)


def _bytes_per_weight(weight: WeightFormat) -> float:
    return (weight.bits + weight.scale_bits) / 8


def _latent_dims(attention: Attention) -> tuple[int, int]:
    return attention.kv_lora_rank + attention.qk_rope_head_dim, attention.kv_lora_rank
