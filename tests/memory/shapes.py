"""Models from a few widths, for tests and benchmarks that need a shape and no catalogue."""

from dataclasses import dataclass
from pathlib import Path

from sim.specs.engine import EngineConfig, ResolvedEngine
from sim.specs.hardware import load_gpu
from sim.specs.model import Attention, AttentionKind, Experts, Layer, Linear, ModelSpec
from sim.specs.vllm import resolve_engine

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


@dataclass(frozen=True)
class Shape:
    """Widths of a decoder; `num_sliding` of its layers have a `window`, `num_experts` makes each layer a mixture."""

    hidden: int = 512
    intermediate: int = 1376
    layers: int = 8
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 64
    vocab: int = 32000
    max_model_len: int = 8192
    num_sliding: int = 0
    window: int | None = None
    num_experts: int = 0
    experts_per_token: int = 0
    kv_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    vision_parameters: int = 0


def make_model(shape: Shape) -> ModelSpec:
    """A bf16 model of that shape; sliding layers come first, as in gemma and gpt-oss."""
    full = [_layer(shape, None)] * (shape.layers - shape.num_sliding)
    return ModelSpec(
        name="shape",
        architecture="LlamaForCausalLM",
        model_type="llama",
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        vocab_size=shape.vocab,
        max_model_len=shape.max_model_len,
        num_attention_heads=shape.heads,
        layers=(*[_layer(shape, shape.window)] * shape.num_sliding, *full),
        embedding=Linear("embed_tokens", shape.hidden, shape.vocab, "vocab"),
        lm_head=Linear("lm_head", shape.hidden, shape.vocab, "vocab"),
        num_final_parameters=shape.hidden,
        num_vision_parameters=shape.vision_parameters,
    )


def _layer(shape: Shape, window: int | None) -> Layer:
    kind: AttentionKind = "mla" if shape.kv_lora_rank else "sliding" if window else "full"
    attention = Attention(
        kind,
        shape.heads,
        shape.kv_heads,
        shape.head_dim,
        shape.head_dim,
        window=window,
        kv_lora_rank=shape.kv_lora_rank,
        qk_rope_head_dim=shape.qk_rope_head_dim,
    )
    experts = Experts(shape.num_experts, shape.experts_per_token, shape.hidden, shape.intermediate)
    dense = (
        Linear("gate_up_proj", shape.hidden, 2 * shape.intermediate, "column"),
        Linear("down_proj", shape.intermediate, shape.hidden, "row"),
    )
    linears = (*_attention_linears(shape), *(() if shape.num_experts else dense))
    return Layer(attention, linears, experts if shape.num_experts else None, 2 * shape.hidden)


def _attention_linears(shape: Shape) -> tuple[Linear, ...]:
    queries, kv = shape.heads * shape.head_dim, 2 * shape.kv_heads * shape.head_dim
    qkv = Linear("qkv_proj", shape.hidden, queries + kv, "column", kv_features=kv, num_kv_heads=shape.kv_heads)
    return qkv, Linear("o_proj", queries, shape.hidden, "row")


def make_engine(
    model: ModelSpec, config: EngineConfig | None = None, *, gpu: str = "h100-sxm", vllm_version: str | None = None
) -> ResolvedEngine:
    """`config` resolved on that GPU."""
    return resolve_engine(config or EngineConfig(), model, load_gpu(gpu), vllm_version=vllm_version)
