"""Small models and engines with defaults that stay out of a test's way."""

from dataclasses import replace
from typing import Any

from sim.specs.engine import EngineConfig, ResolvedEngine
from sim.specs.hardware import HardwareProfile, load_gpu
from sim.specs.model import Attention, Experts, Layer, Linear, ModelSpec
from sim.specs.operator_fits import (
    AllReduceFit,
    DecodeAttentionFit,
    ElementwiseFit,
    ExpertsFit,
    GemmFit,
    HostFit,
    MessageFit,
    MessageFits,
    OperatorFits,
    PrefillAttentionFit,
    SamplerFit,
)
from sim.specs.vllm import resolve_engine
from sim.steptime.expert_routing import ExpertRouting, experts_load
from sim.steptime.operators import routed_experts
from sim.units import MS, NS, US

FULL = Attention("full", num_heads=32, num_kv_heads=8, head_dim=128, v_head_dim=128)


DECODE_FIT = DecodeAttentionFit(0.114, 0.915, 11.959 * US, 2.005 * US, "fitted")
PREFILL_FIT = PrefillAttentionFit(0.622, 0.328, 11.796 * US, 0.822, 0.0, 0.0, 0.0, "fitted")
FITS = OperatorFits(
    gemm={
        "bf16": GemmFit(0.836, 0.896, 3.687 * US, 0.0, "fitted"),
        "fp8": GemmFit(0.563, 0.85, 6.47 * US, 0.392, "fitted"),
        "int8": GemmFit(0.563, 0.85, 6.47 * US, 0.392, "derived"),
    },
    decode_attention=DECODE_FIT,
    decode_attention_fp8=DECODE_FIT,
    prefill_attention=PREFILL_FIT,
    prefill_attention_fp8=PREFILL_FIT,
    experts={
        "bf16": ExpertsFit(0.45, 0.901, 47.671 * US, 0.0, 5.0, 8.0, 0.0, "fitted"),
        "fp8": ExpertsFit(0.213, 0.856, 47.718 * US, 0.0, 5.0, 8.0, 0.0, "fitted"),
        "int8": ExpertsFit(0.213, 0.856, 47.718 * US, 0.0, 5.0, 8.0, 0.0, "derived"),
    },
    experts_weight_only=ExpertsFit(0.25, 0.8, 60.0 * US, 0.0, 5.0, 8.0, 0.0, "fitted"),
    all_reduce=AllReduceFit(4.176 * US, 0.169 * US, 0.593, "fitted"),
    messages=MessageFits(
        link=MessageFit(7.6 * US, 0.8, "fitted"),
        pcie=MessageFit(6.3 * US, 0.5, "derived"),
        network=MessageFit(20 * US, 0.7, "fitted"),
    ),
    elementwise=ElementwiseFit(0.5, 2.3 * US, "fitted"),
    sampler=SamplerFit(3.5 * NS, 215.0, "fitted"),
    host=HostFit(300 * US, 4 * US, 100 * US, 29.2 * US, 90 * US, 5 * US, 6.8 * MS, 33 * US, "generic"),
)


def h100() -> HardwareProfile:
    """An H100 whose fits stand still, so that numbers can be worked by hand."""
    return replace(load_gpu("h100-sxm"), operators=FITS)


def on_cpu() -> HardwareProfile:
    """The same kernels on a processor that launches them itself."""
    return replace(h100(), architecture="CPU")


DEVICES = {"GPU": h100, "CPU": on_cpu}


def faster(gpu: HardwareProfile, factor: float) -> HardwareProfile:
    """The same GPU with that many times the memory bandwidth."""
    return replace(gpu, memory_bandwidth_bytes_per_s=gpu.memory_bandwidth_bytes_per_s * factor)


def make_model(
    *, attention: Attention = FULL, num_layers: int = 32, experts: Experts | None = None, **changes: Any
) -> ModelSpec:
    """A model of Llama-3.1-8B's shape unless told otherwise."""
    qkv = (attention.num_heads + 2 * attention.num_kv_heads) * attention.head_dim
    dense = () if experts else (Linear("gate_up_proj", 4096, 28672, "column"), Linear("down_proj", 14336, 4096, "row"))
    linears = (
        Linear("qkv_proj", 4096, qkv, "column", kv_features=2048, num_kv_heads=attention.num_kv_heads),
        Linear("o_proj", 4096, 4096, "row"),
        *dense,
    )
    embedding = Linear("embed_tokens", 4096, 128256, "vocab")
    model = ModelSpec(
        name="test",
        architecture="LlamaForCausalLM",
        model_type="llama",
        hidden_size=4096,
        intermediate_size=14336,
        vocab_size=128256,
        max_model_len=131072,
        num_attention_heads=attention.num_heads,
        layers=(Layer(attention, linears, experts, 8192),) * num_layers,
        embedding=embedding,
        lm_head=replace(embedding, name="lm_head"),
        num_final_parameters=4096,
    )
    return replace(model, **changes)


def make_engine(model: ModelSpec | None = None, gpu: HardwareProfile | None = None, **arguments: Any) -> ResolvedEngine:
    """vLLM 0.21's choices for a server with at most 256 sequences and 8,192 tokens a step."""
    arguments = {"max_num_seqs": 256, "max_num_batched_tokens": 8192, **arguments}
    return resolve_engine(EngineConfig(**arguments), model or make_model(), gpu or h100(), vllm_version="0.21.0")


def experts_s(tokens: float, experts: Experts, gpu: HardwareProfile, routing: ExpertRouting = "skewed") -> float:
    """Seconds of so many tokens with experts of which one GPU has all, or a slice of each."""
    return routed_experts(experts_load(tokens, experts, routing), experts, gpu).seconds
