"""What follows attention in a layer, as matrices: a dense MLP, or routed and shared experts."""

from typing import Literal, NamedTuple

from sim.errors import ModelError
from sim.specs.hf_config import HFConfig
from sim.specs.layer_plan import num_experts
from sim.specs.layer_slot import Slot
from sim.specs.model import BF16, FP32, Experts, Linear


class FeedForward(NamedTuple):
    """The feed-forward half of a layer; `num_other_parameters` are correction biases, router scales and norms."""

    linears: tuple[Linear, ...]
    experts: Experts | None = None
    num_other_parameters: int = 0


def feed_forward(slot: Slot, kind: Literal["dense", "experts", "none"]) -> FeedForward:
    """The layer's experts or dense MLP; Gemma 4 has both side by side."""
    match kind:
        case "none":
            return FeedForward(())
        case "dense":
            return FeedForward(_mlp(slot, _dense_intermediate_size(slot.config), slot.traits.dense_module))
        case "experts":
            routed = _mixture_of_experts(slot)
    if not slot.traits.parallel_dense_mlp:
        return routed
    dense = _mlp(slot, slot.config.size("intermediate_size"), slot.traits.dense_module)
    return routed._replace(linears=(*dense, *routed.linears))


def _dense_intermediate_size(config: HFConfig) -> int:
    """Llama 4 names that of its dense layers apart."""
    return config.size("intermediate_size_mlp", "intermediate_size")


def _mlp(slot: Slot, intermediate_size: int, module: str, *, prefix: str = "") -> tuple[Linear, ...]:
    hidden, has_bias = slot.hidden_size, slot.config.flag("mlp_bias")
    up_features, up = (
        (2 * intermediate_size, "gate_up_proj") if slot.traits.gated_mlp else (intermediate_size, "up_proj")
    )
    return (
        slot.linear(f"{prefix}{up}", f"{module}.up_proj", hidden, up_features, "column", bias=has_bias),
        slot.linear(f"{prefix}down_proj", f"{module}.down_proj", intermediate_size, hidden, "row", bias=has_bias),
    )


def _mixture_of_experts(slot: Slot) -> FeedForward:
    config, traits = slot.config, slot.traits
    experts = _experts(slot)
    weight = FP32 if traits.router_in_fp32 else BF16
    router = Linear("gate", slot.hidden_size, experts.num_experts, "replicated", traits.expert_bias, weight)
    latent, latent_norm = _latent_projections(slot, experts.hidden_size)
    shared = _shared_experts(slot, experts.intermediate_size)
    has_correction_bias = traits.correction_bias or config.get("topk_method") == "noaux_tc"
    correction_bias = experts.num_experts if has_correction_bias else 0
    # Gemma 4's router has a scale a channel and one an expert, and three norms join the two branches
    scales = 4 * slot.hidden_size + experts.num_experts if traits.parallel_dense_mlp else 0
    return FeedForward((router, *latent, *shared), experts, correction_bias + scales + latent_norm)


def _experts(slot: Slot) -> Experts:
    config, traits = slot.config, slot.traits
    count = num_experts(config)
    per_token = config.size("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "top_k_experts")
    if per_token > count:
        raise ModelError(f"{config.source}: {per_token} experts per token are more than the {count} experts there are.")
    return Experts(
        count,
        per_token,
        config.size("routed_expert_hidden_size", "moe_latent_size", "hidden_size"),
        config.size("moe_intermediate_size", "intermediate_size"),
        traits.expert_bias,
        slot.format_of(f"{traits.moe_module}.experts.0.up_proj"),
        num_matrices=3 if traits.gated_mlp else 2,
    )


def _latent_projections(slot: Slot, latent_size: int) -> tuple[tuple[Linear, ...], int]:
    """Latent MoE: the experts work in a narrower space; Kimi K3 norms what comes back."""
    hidden, module = slot.hidden_size, slot.traits.moe_module
    if latent_size == hidden:
        return (), 0
    linears = (
        slot.linear("routed_expert_down_proj", f"{module}.routed_expert_down_proj", hidden, latent_size, "replicated"),
        slot.linear("routed_expert_up_proj", f"{module}.routed_expert_up_proj", latent_size, hidden, "replicated"),
    )
    return linears, latent_size if slot.config.flag("latent_moe_use_norm") else 0


def _shared_experts(slot: Slot, expert_size: int) -> tuple[Linear, ...]:
    """All shared experts of a layer as one MLP, as vLLM runs them."""
    config, traits = slot.config, slot.traits
    count = config.count("n_shared_experts", "num_shared_experts", default=traits.num_shared_experts)
    keys = ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size")
    size = config.count(*keys, default=count * expert_size)
    if not size:
        return ()
    mlp = _mlp(slot, size, f"{traits.moe_module}.{traits.shared_module}", prefix="shared_experts.")
    gate = (Linear("shared_expert_gate", slot.hidden_size, 1, "replicated"),) if traits.shared_expert_gate else ()
    return (*mlp, *gate)
