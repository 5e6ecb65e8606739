"""What each model_type adds to the common decoder that its config's keys do not say."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

QKNorm = Literal["none", "head", "full"]


@dataclass(frozen=True, slots=True)
class Traits:
    """What a model_type fixes beyond its config's keys, as transformers' and vLLM's model classes have it.

    `qkv_bias` and `o_bias` follow the config's `attention_bias` where None. `qk_norm` is over each head ("head") or the
    whole projection ("full"). The `_module`s are named as checkpoints name them, for quantisation ignore lists.
    """

    qkv_bias: bool | None = None
    o_bias: bool | None = None
    qk_norm: QKNorm = "none"
    qk_norm_key: str | None = None  # the flag that switches the norm on, where it is optional
    norms_per_layer: int = 2
    attention_sinks: bool = False
    attention_output_gate: bool = False
    dense_module: str = "mlp"
    moe_module: str = "mlp"
    shared_module: str = "shared_experts"
    num_shared_experts: int = 0  # where the config does not say
    expert_bias: bool = False  # and a router bias with it
    correction_bias: bool = False
    router_in_fp32: bool = False  # vLLM holds and multiplies the router in 32 bits, whatever the checkpoint has
    shared_expert_gate: bool = False
    gated_mlp: bool = True
    parallel_dense_mlp: bool = False  # a dense MLP beside the experts in every layer
    full_attention_interval: int | None = None  # every n-th layer attends fully where the config does not list them
    windowed_kind: Literal["sliding_attention", "chunked_attention", "linear_attention"] = "sliding_attention"
    slides_by_default: bool = True  # whether `sliding_window` counts without `use_sliding_window`
    tied_by_default: bool = False
    approximation: str | None = None


V4_NOTE = "the uncompressed window of compressed layers and the hash-routing tables are not counted"
KIMI_LINEAR_NOTE = "K3's attention residuals are not counted"
OPT_NOTE = "its table of positions and the biases of its norms are not counted"
NEMOTRON_NOTE = "each mixer is one layer with the feed-forward after it, so num_layers counts mixers"
COMMON_DECODER = Traits()
QWEN2 = Traits(
    qkv_bias=True, o_bias=False, slides_by_default=False, shared_module="shared_expert", shared_expert_gate=True
)
QWEN3 = Traits(qk_norm="head", slides_by_default=False)
QWEN3_5 = replace(
    QWEN3,
    shared_module="shared_expert",
    shared_expert_gate=True,
    full_attention_interval=4,
    windowed_kind="linear_attention",
    attention_output_gate=True,
)
GEMMA = Traits(norms_per_layer=4, tied_by_default=True)
GLM4_MOE = Traits(o_bias=False, qk_norm="head", qk_norm_key="use_qk_norm", correction_bias=True, router_in_fp32=True)
MIXTRAL = Traits(moe_module="block_sparse_moe")
LLAMA4 = Traits(
    moe_module="feed_forward",
    dense_module="feed_forward",
    shared_module="shared_expert",
    num_shared_experts=1,
    full_attention_interval=4,
    windowed_kind="chunked_attention",
)

TRAITS: Mapping[str, Traits] = {
    "llama": COMMON_DECODER,
    "granite": COMMON_DECODER,
    "phi3": COMMON_DECODER,
    "mistral": COMMON_DECODER,
    "ministral3": COMMON_DECODER,
    "mixtral": MIXTRAL,
    "llama4_text": LLAMA4,
    "qwen2": QWEN2,
    "qwen2_moe": QWEN2,
    "qwen2_vl_text": QWEN2,
    "qwen2_5_vl_text": QWEN2,
    "qwen3": QWEN3,
    "qwen3_moe": QWEN3,
    "qwen3_vl_text": QWEN3,
    "qwen3_vl_moe_text": QWEN3,
    "qwen3_next": QWEN3_5,
    "qwen3_5_text": QWEN3_5,
    "qwen3_5_moe_text": QWEN3_5,
    "gpt_oss": Traits(attention_sinks=True, expert_bias=True, full_attention_interval=2),
    "gemma": replace(GEMMA, norms_per_layer=2),
    "gemma2": replace(GEMMA, full_attention_interval=2),
    "gemma3_text": replace(GEMMA, qk_norm="head", full_attention_interval=6),
    "gemma4_text": replace(GEMMA, qk_norm="head", full_attention_interval=6, parallel_dense_mlp=True),
    "deepseek_v2": COMMON_DECODER,
    "deepseek_v3": COMMON_DECODER,
    "deepseek_v32": COMMON_DECODER,
    "kimi_k2": COMMON_DECODER,
    "glm_moe_dsa": COMMON_DECODER,
    "glm4_moe": GLM4_MOE,
    "deepseek_v4": Traits(correction_bias=True, approximation=V4_NOTE),
    "kimi_linear": Traits(moe_module="block_sparse_moe", correction_bias=True, approximation=KIMI_LINEAR_NOTE),
    "nemotron_h": Traits(gated_mlp=False, correction_bias=True, router_in_fp32=True, approximation=NEMOTRON_NOTE),
    "opt": Traits(gated_mlp=False, approximation=OPT_NOTE),
    "minimax_m2": replace(MIXTRAL, qk_norm="full", correction_bias=True, router_in_fp32=True),
}
