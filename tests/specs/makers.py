"""Small models and GPUs for tests, with only the facts that matter to them spelt out."""

from dataclasses import replace

from sim.specs.hardware import HardwareProfile, load_gpu
from sim.specs.model import Attention, AttentionKind, Layer, Linear, ModelSpec


def make_model(
    *,
    name: str = "tiny",
    architecture: str = "LlamaForCausalLM",
    kind: AttentionKind = "full",
    num_heads: int = 32,
    num_kv_heads: int = 8,
    max_model_len: int = 131072,
    dtype: str = "bfloat16",
    num_layers: int = 2,
) -> ModelSpec:
    attention = Attention(kind=kind, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=128, v_head_dim=128)
    return ModelSpec(
        name=name,
        architecture=architecture,
        model_type="tiny",
        hidden_size=64,
        intermediate_size=128,
        num_attention_heads=num_heads,
        vocab_size=100,
        max_model_len=max_model_len,
        layers=(Layer(attention, linears=(), experts=None, num_other_parameters=0),) * num_layers,
        embedding=Linear("embed_tokens", 64, 100, "vocab"),
        lm_head=None,
        num_final_parameters=64,
        dtype=dtype,
    )


def make_cpu() -> HardwareProfile:
    return replace(load_gpu("h100-sxm"), name="cpu", label="CPU", architecture="CPU", compute_capability="")
