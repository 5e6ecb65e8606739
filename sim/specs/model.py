"""What a model is: its layers as weight matrices, attention and experts.

Parameter counts, weight bytes, KV bytes and GEMM times all derive from this one description.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Split = Literal["column", "row", "vocab", "replicated"]
AttentionKind = Literal["full", "sliding", "chunked", "mla", "linear"]


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How the numbers of one weight are stored and multiplied.

    `name` is the format's common name (bf16, fp8, fp8_block, mxfp4, nvfp4, int4, int8); `bits` those of one weight;
    `scale_bits` what its scales add per weight (a 32-bit scale for each 128 x 128 block is 32 / 16384); `compute` the
    dtype of the multiplication: weight-only formats compute in bf16.
    """

    name: str = "bf16"
    bits: float = 16.0
    scale_bits: float = 0.0
    compute: Literal["bf16", "fp8", "fp4", "int8"] = "bf16"

    def num_bytes(self, num_parameters: int) -> int:
        """Stored size of that many weights with their scales, rounded up to a whole byte."""
        return -int(-num_parameters * (self.bits + self.scale_bits) // 8)


BF16 = WeightFormat()


@dataclass(frozen=True, slots=True)
class Linear:
    """A weight matrix of `in_features` x `out_features`, as vLLM fuses it (qkv_proj, o_proj, gate_up_proj, down_proj, ...).

    `split` says how tensor parallelism cuts it: column (out_features), row (in_features), vocab (out_features, padded),
    replicated (not at all).
    """

    name: str
    in_features: int
    out_features: int
    split: Split
    bias: bool = False
    weight: WeightFormat = BF16

    @property
    def num_parameters(self) -> int:
        return self.in_features * self.out_features + (self.out_features if self.bias else 0)


@dataclass(frozen=True, slots=True)
class Attention:
    """One layer's attention and what it keeps per token.

    `head_dim` is that of queries and keys, `v_head_dim` that of values. MLA keeps one latent vector of
    `kv_lora_rank + qk_rope_head_dim` a token; linear attention keeps `state_bytes` a request and nothing a token.
    `window` is set for sliding and chunked kinds only.
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


@dataclass(frozen=True, slots=True)
class Experts:
    """The routed experts of one layer; each is gate, up (hidden x intermediate) and down (intermediate x hidden)."""

    num_experts: int
    num_experts_per_tok: int
    hidden_size: int
    intermediate_size: int
    bias: bool = False
    weight: WeightFormat = BF16

    @property
    def num_parameters_per_expert(self) -> int:
        biases = 2 * self.intermediate_size + self.hidden_size if self.bias else 0
        return 3 * self.hidden_size * self.intermediate_size + biases

    @property
    def num_parameters(self) -> int:
        return self.num_experts * self.num_parameters_per_expert


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer: attention, its dense matrices (router and shared experts among them), routed experts, the rest.

    `num_other_parameters` counts what is neither: norms, sinks, correction biases, convolutions.
    """

    attention: Attention
    linears: tuple[Linear, ...]
    experts: Experts | None
    num_other_parameters: int

    @property
    def num_parameters(self) -> int:
        routed = self.experts.num_parameters if self.experts else 0
        return sum(linear.num_parameters for linear in self.linears) + routed + self.num_other_parameters


@dataclass(frozen=True)
class ModelSpec:
    """Frozen facts about a model, from a Hugging Face config or the catalogue.

    `max_model_len` is what vLLM derives from the config; `dtype_bytes` the size of activations and of the KV cache
    under `--kv-cache-dtype auto`. `num_vision_parameters` are loaded by vLLM but not run for text.
    `source` says where the facts come from.
    """

    name: str
    architecture: str
    model_type: str
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    max_model_len: int
    layers: tuple[Layer, ...]
    embedding: Linear
    lm_head: Linear | None  # None when tied to the embedding
    num_final_parameters: int  # the last norm
    num_vision_parameters: int = 0
    dtype: str = "bfloat16"
    quantization: str | None = None
    source: str = ""

    @property
    def dtype_bytes(self) -> int:
        return 4 if self.dtype == "float32" else 2

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @cached_property
    def distinct_layers(self) -> Mapping[Layer, int]:
        """Each different layer with how often it occurs, in order of first occurrence."""
        return Counter(self.layers)

    @cached_property
    def num_parameters(self) -> int:
        """Parameters of the text model, without vision tower and multi-token-prediction layers."""
        head = self.lm_head.num_parameters if self.lm_head else 0
        layers = sum(layer.num_parameters * count for layer, count in self.distinct_layers.items())
        return self.embedding.num_parameters + layers + self.num_final_parameters + head

    @property
    def is_moe(self) -> bool:
        return any(layer.experts for layer in self.layers)
