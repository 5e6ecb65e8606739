"""What a model is: its layers as weight matrices, attention and experts.

Parameter counts, weight bytes, KV bytes and GEMM times all derive from this one description.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

Split = Literal["column", "row", "vocab", "replicated"]
AttentionKind = Literal["full", "sliding", "chunked", "mla", "linear"]
StateKind = Literal["gated_delta_net", "kimi_delta_attention", "kimi_k3", "mamba2"]


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How the numbers of one weight are stored and multiplied.

    `name` is the format's common name (bf16, fp32, fp8, fp8_block, mxfp4, nvfp4, int4, int8); `bits` those of one weight;
    `scale_bits` what its scales add per weight (a 32-bit scale for each 128 x 128 block is 32 / 16384); `compute` the
    dtype of the multiplication: weight-only formats compute in bf16, fp32 without tensor cores. `is_2_of_4`: of four weights in a row two are kept,
    `bits` and `scale_bits` are means over all four, and sparse tensor cores multiply. `activations` is what the inputs of
    narrow integers are quantised to, for which vLLM needs a kernel of their own. `unpacked_first`: to multiply
    more than one row each step writes the weights out in 16 bits, as bitsandbytes does; others are unpacked in registers.
    """

    name: str = "bf16"
    bits: float = 16.0
    scale_bits: float = 0.0
    compute: Literal["bf16", "fp8", "fp4", "int8"] = "bf16"
    is_2_of_4: bool = False
    activations: Literal["int4", "int8", "fp8"] | None = None
    unpacked_first: bool = False

    def num_bytes(self, num_parameters: int) -> int:
        """Stored size of that many weights with their scales, rounded up to a whole byte."""
        return -int(-num_parameters * (self.bits + self.scale_bits) // 8)


BF16 = WeightFormat()
FP32 = WeightFormat("fp32", 32.0)
VOCAB_PADDING = 64  # vLLM pads a sharded vocabulary to a multiple of it (DEFAULT_VOCAB_PADDING_SIZE)


def ceil_div(number: int, divisor: int) -> int:
    return -(-number // divisor)


def kv_heads_per_rank(num_kv_heads: int, tensor_parallel_size: int) -> int:
    """K/V heads fewer than ranks are replicated: every rank keeps at least one."""
    return max(1, num_kv_heads // tensor_parallel_size)


@dataclass(frozen=True, slots=True)
class Linear:
    """A weight matrix of `in_features` x `out_features`, as vLLM fuses it (qkv_proj, o_proj, gate_up_proj, down_proj, ...).

    `split` says how tensor parallelism cuts it: column (out_features), row (in_features), vocab (out_features, padded),
    replicated (not at all). In a fused qkv_proj, `kv_features` of the out_features belong to `num_kv_heads` heads.
    """

    name: str
    in_features: int
    out_features: int
    split: Split
    bias: bool = False
    weight: WeightFormat = BF16
    kv_features: int = 0
    num_kv_heads: int = 0

    @property
    def num_parameters(self) -> int:
        return self.in_features * self.out_features + (self.out_features if self.bias else 0)

    @property
    def num_bytes(self) -> int:
        """Stored size; biases stay in 16 bits whatever the weight's format."""
        return self.weight.num_bytes(self.in_features * self.out_features) + 2 * (self.out_features if self.bias else 0)

    def per_rank(self, tensor_parallel_size: int) -> "Linear":
        """The part of it that each of the ranks holds; the cut dimension is rounded up."""
        if tensor_parallel_size == 1 and self.split != "vocab":
            return self
        match self.split:
            case "replicated":
                return self
            case "row":
                return replace(self, in_features=ceil_div(self.in_features, tensor_parallel_size))
            case "vocab":
                padded = ceil_div(self.out_features, VOCAB_PADDING) * VOCAB_PADDING
                return replace(self, out_features=ceil_div(padded, tensor_parallel_size))
            case "column":
                return self._columns_per_rank(tensor_parallel_size)

    def _columns_per_rank(self, tensor_parallel_size: int) -> "Linear":
        rest = ceil_div(self.out_features - self.kv_features, tensor_parallel_size)
        if not self.num_kv_heads:
            return replace(self, out_features=rest)
        heads = kv_heads_per_rank(self.num_kv_heads, tensor_parallel_size)
        kv_features = self.kv_features // self.num_kv_heads * heads
        return replace(self, out_features=rest + kv_features, kv_features=kv_features, num_kv_heads=heads)


@dataclass(frozen=True, slots=True)
class Attention:
    """One layer's attention and what it keeps per token.

    `head_dim` is that of queries and keys, `v_head_dim` that of values. MLA keeps one latent vector of
    `kv_lora_rank + qk_rope_head_dim` a token; linear attention keeps `state_bytes` a request and nothing a token, `state_kind` says whose.
    `window` is set for sliding and chunked kinds only. Sparse attention (DSA) reads at most `index_topk` tokens of the
    context, chosen by an indexer that keeps a key of `index_head_dim` numbers a token. `norms_all_heads`: queries are normed over all heads
    together, and keys as well, so ranks add up the squares of those that each has.
    """

    kind: AttentionKind
    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    window: int | None = None
    kv_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    state_bytes: int = 0
    state_kind: StateKind | None = None
    index_topk: int | None = None
    index_head_dim: int = 0
    norms_all_heads: bool = False

    @property
    def kv_numbers_per_token(self) -> int:
        """How many numbers the KV cache holds for one token of this layer, without the indexer's."""
        match self.kind:
            case "linear":
                return 0
            case "mla":
                return self.kv_lora_rank + self.qk_rope_head_dim
            case _:
                return self.num_kv_heads * (self.head_dim + self.v_head_dim)

    def per_rank(self, tensor_parallel_size: int) -> "Attention":
        """The heads of one rank; K/V heads fewer than ranks are replicated, an MLA latent always is."""
        return replace(
            self,
            num_heads=ceil_div(self.num_heads, tensor_parallel_size),
            num_kv_heads=kv_heads_per_rank(self.num_kv_heads, tensor_parallel_size),
            state_bytes=ceil_div(self.state_bytes, tensor_parallel_size),
        )


@dataclass(frozen=True, slots=True)
class Experts:
    """The routed experts of one layer: `num_matrices` of hidden x intermediate each (gate, up, down; or up, down)."""

    num_experts: int
    num_experts_per_tok: int
    hidden_size: int
    intermediate_size: int
    bias: bool = False
    weight: WeightFormat = BF16
    num_matrices: int = 3

    @property
    def num_weights_per_expert(self) -> int:
        return self.num_matrices * self.hidden_size * self.intermediate_size

    @property
    def num_biases_per_expert(self) -> int:
        return (self.num_matrices - 1) * self.intermediate_size + self.hidden_size if self.bias else 0

    @property
    def num_parameters_per_expert(self) -> int:
        return self.num_weights_per_expert + self.num_biases_per_expert

    @property
    def num_parameters(self) -> int:
        return self.num_experts * self.num_parameters_per_expert

    @property
    def num_bytes(self) -> int:
        biases = 2 * self.num_biases_per_expert
        return self.weight.num_bytes(self.num_experts * self.num_weights_per_expert) + self.num_experts * biases

    def per_rank(self, tensor_parallel_size: int) -> "Experts":
        """Every rank holds a slice of each expert's intermediate dimension."""
        return replace(self, intermediate_size=ceil_div(self.intermediate_size, tensor_parallel_size))


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer: attention, its dense matrices (router and shared experts among them), routed experts, the rest.

    `num_other_parameters` counts what is no matrix: norms, sinks, correction biases, convolutions.
    """

    attention: Attention
    linears: tuple[Linear, ...]
    experts: Experts | None
    num_other_parameters: int

    @property
    def num_parameters(self) -> int:
        routed = self.experts.num_parameters if self.experts else 0
        return sum(linear.num_parameters for linear in self.linears) + routed + self.num_other_parameters

    @property
    def num_active_parameters(self) -> int:
        """Parameters that one token's forward pass reads."""
        if not self.experts:
            return self.num_parameters
        idle = self.experts.num_experts - self.experts.num_experts_per_tok
        return self.num_parameters - idle * self.experts.num_parameters_per_expert

    @property
    def num_bytes(self) -> int:
        routed = self.experts.num_bytes if self.experts else 0
        return sum(linear.num_bytes for linear in self.linears) + routed + 2 * self.num_other_parameters

    def per_rank(self, tensor_parallel_size: int) -> "Layer":
        """What one rank holds of it; what is no matrix counts in full, as norms are replicated."""
        return replace(
            self,
            attention=self.attention.per_rank(tensor_parallel_size),
            linears=tuple(linear.per_rank(tensor_parallel_size) for linear in self.linears),
            experts=self.experts.per_rank(tensor_parallel_size) if self.experts else None,
        )


@dataclass(frozen=True)
class ModelSpec:
    """Frozen facts about a model, from a Hugging Face config or the catalogue.

    `max_model_len` is what vLLM derives from the config; `dtype_bytes` the size of activations and of the KV cache
    under `--kv-cache-dtype auto`. `num_vision_parameters` are loaded by vLLM but not run for text.
    `num_prediction_layers` for multi-token prediction are in the checkpoint, but no part of these layers.
    `source` says where the facts come from; `approximation` what they leave out, None where they are exact.
    """

    name: str
    architecture: str
    model_type: str
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    max_model_len: int
    num_attention_heads: int
    layers: tuple[Layer, ...]
    embedding: Linear
    lm_head: Linear | None  # None when tied to the embedding
    num_final_parameters: int  # the last norm
    num_vision_parameters: int = 0
    num_prediction_layers: int = 0
    dtype: str = "bfloat16"
    quantization: str | None = None
    source: str = ""
    approximation: str | None = None

    @property
    def dtype_bytes(self) -> int:
        return 4 if self.dtype == "float32" else 2

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def output_head(self) -> Linear:
        """The matrix that turns sampled rows into logits: lm_head, or the embedding it is tied to."""
        return self.lm_head or replace(self.embedding, name="lm_head")

    @cached_property
    def distinct_layers(self) -> Mapping[Layer, int]:
        """Each different layer with how often it occurs, in order of first occurrence."""
        return Counter(self.layers)

    @cached_property
    def has_experts(self) -> bool:
        return any(layer.experts for layer in self.distinct_layers)

    @cached_property
    def num_parameters(self) -> int:
        """Parameters of the text model, without vision tower and multi-token-prediction layers."""
        layers = sum(layer.num_parameters * count for layer, count in self.distinct_layers.items())
        return self._num_end_parameters + layers

    @cached_property
    def num_active_parameters(self) -> int:
        """Parameters that one token reads, embedding and head included: of the experts, only those routed to."""
        layers = sum(layer.num_active_parameters * count for layer, count in self.distinct_layers.items())
        return self._num_end_parameters + layers

    @property
    def _num_end_parameters(self) -> int:
        head = self.lm_head.num_parameters if self.lm_head else 0
        return self.embedding.num_parameters + self.num_final_parameters + head

    def weight_bytes(self, tensor_parallel_size: int = 1) -> int:
        """Bytes of weights that each rank loads, vision tower included; the vocabulary is padded as vLLM pads it."""
        layers = sum(
            layer.per_rank(tensor_parallel_size).num_bytes * count for layer, count in self.distinct_layers.items()
        )
        ends = (self.embedding, self.lm_head) if self.lm_head else (self.embedding,)
        vocabulary = sum(end.per_rank(tensor_parallel_size).num_bytes for end in ends)
        vision = ceil_div(2 * self.num_vision_parameters, tensor_parallel_size)
        return layers + vocabulary + 2 * self.num_final_parameters + vision
