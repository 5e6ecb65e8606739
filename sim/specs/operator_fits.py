"""What was fitted to measured kernels of one GPU, operator by operator; `sim.steptime` has the formulas.

Efficiencies are fractions of the peaks in the same hardware profile: change both or neither.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import hypot
from typing import Literal

Basis = Literal["fitted", "derived", "generic"]
ComputeDtype = Literal["bf16", "fp8", "fp4", "int8"]
COMMON_DIMS = 2 * 128


@dataclass(frozen=True, slots=True)
class GemmFit:
    """A dense matrix multiplication. `wave_penalty`: extra compute time, relative, where tiles fill one wave of SMs.

    `by_rows`, ascending: how many times as long as that so many rows were measured to take, by the kernel that is chosen for
    them; in between, in proportion. `quantise_efficiency`: of the memory bandwidth, by the kernels that were timed with it and quantise its inputs.
    """

    compute_efficiency: float
    memory_efficiency: float
    launch_s: float
    wave_penalty: float
    basis: Basis
    by_rows: tuple[tuple[float, float], ...] = ()
    quantise_efficiency: float = 0.8


@dataclass(frozen=True, slots=True)
class DecodeAttentionFit:
    """Attention of one query token per request. `per_wave_s`: extra per wave of (request, KV head) pairs."""

    compute_efficiency: float
    memory_efficiency: float
    launch_s: float
    per_wave_s: float
    basis: Basis


@dataclass(frozen=True, slots=True)
class PrefillAttentionFit:
    """Attention of prompt chunks. `wave_penalty` as for GEMMs, over tiles of 128 queries by heads.

    The softmax of a query and a key takes as long as multiplying `softmax_dims` more of their numbers, and runs beside these: the
    two add up as the sides of a right angle do.

    Where decodes ride in the same kernel (FlashAttention 2), each costs as much as `decode_rows` query rows, and
    `decode_wave_s` more per wave of (request, head) pairs; 0 where they have a kernel of their own. Such a kernel launches as
    many tiles for each request as the longest chunk has; those without queries take `idle_tile_s` each.
    """

    compute_efficiency: float
    memory_efficiency: float
    launch_s: float
    wave_penalty: float
    decode_rows: float
    decode_wave_s: float
    idle_tile_s: float
    basis: Basis
    softmax_dims: float = 0.0

    def multiplied_dims(self, dims: float) -> float:
        """The numbers of a key and its value, and those that its softmax stands for."""
        return hypot(dims, self.softmax_dims)

    @property
    def efficiency_of_common_heads(self) -> float:
        """What of the peak multiplications have whose keys and values have 128 numbers each, softmax and all."""
        return self.compute_efficiency * COMMON_DIMS / self.multiplied_dims(COMMON_DIMS)


@dataclass(frozen=True, slots=True)
class ExpertsFit:
    """The routed experts of one layer, routing and permutation included.

    Kernels before and behind the multiplications choose a token's experts and sort tokens by them, which takes `token_s` a token whatever its size;
    they gather it for each of its experts and add up what comes back: each row
    goes through memory `row_moves` times, and so do `padded_rows` for each expert that has any. In tiles larger than the smallest, weights are read
    slower by the share `large_tile_reads`.
    """

    compute_efficiency: float
    memory_efficiency: float
    launch_s: float
    token_s: float
    row_moves: float
    padded_rows: float
    large_tile_reads: float
    basis: Basis


@dataclass(frozen=True, slots=True)
class AllReduceFit:
    """A sum over GPUs inside a CUDA graph: `base_s` + `per_gpu_s` x (GPUs - 1) + bytes on the wire.

    `by_bytes`, for ascending numbers of GPUs and of bytes: how many times as long as that a sum was measured to take, as one
    algorithm gives way to another. Between two sizes seconds grow evenly, between two numbers of GPUs their logarithms.
    """

    base_s: float
    per_gpu_s: float
    link_efficiency: float
    basis: Basis
    by_bytes: tuple[tuple[int, tuple[tuple[float, float], ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class MessageFit:
    """What one GPU sends to another: `base_s`, and bytes at this share of the link's bandwidth."""

    base_s: float
    efficiency: float
    basis: Basis


@dataclass(frozen=True, slots=True)
class MessageFits:
    """Over each link that two GPUs may have: NVLink or the like, PCIe within a node, and the network between nodes."""

    link: MessageFit
    pcie: MessageFit
    network: MessageFit


@dataclass(frozen=True, slots=True)
class ElementwiseFit:
    """Norms, rotary embedding, activations: bytes moved and a launch."""

    memory_efficiency: float
    launch_s: float
    basis: Basis


@dataclass(frozen=True, slots=True)
class SamplerFit:
    """Truncating sampled rows to top-p or top-k by sorting them.

    Rows are sorted side by side, so `sort_entry_s` for each entry of the vocabulary counts once a step; bytes are moved
    for each logit of each row.
    """

    sort_entry_s: float
    sort_bytes_per_logit: float
    basis: Basis


@dataclass(frozen=True, slots=True)
class HostFit:
    """What the CPU needs: a step, each request in it, each kernel launched outside a CUDA graph, and a layer between two graphs.

    Between two graphs the GPU idles as well, by `gap_s` a layer.
    Async scheduling hides the first two behind the GPU's step, but for `exposed_s`. The front end (HTTP, tokenizer,
    detokenizer, streaming) delays what a client sees of a request by `front_end_s`, and `front_end_request_s` more for
    each request that streams beside it.
    """

    step_s: float
    request_s: float
    exposed_s: float
    launch_s: float
    layer_s: float
    gap_s: float
    front_end_s: float
    front_end_request_s: float
    basis: Basis


@dataclass(frozen=True, slots=True)
class OperatorFits:
    """All of one GPU; `gemm` and `experts` by the dtype that is multiplied in, attention by that of the KV cache.

    `experts_weight_only` are those whose weights of 4 bits are multiplied as 16-bit ones.
    """

    gemm: Mapping[ComputeDtype, GemmFit]
    decode_attention: DecodeAttentionFit
    decode_attention_fp8: DecodeAttentionFit
    prefill_attention: PrefillAttentionFit
    prefill_attention_fp8: PrefillAttentionFit
    experts: Mapping[ComputeDtype, ExpertsFit]
    experts_weight_only: ExpertsFit
    all_reduce: AllReduceFit
    messages: MessageFits
    elementwise: ElementwiseFit
    sampler: SamplerFit
    host: HostFit
