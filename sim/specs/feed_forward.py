"""What follows attention in a layer, as matrices: a dense MLP, or routed and shared experts."""

from typing import NamedTuple

from sim.errors import ModelError
from sim.specs.layer_slot import Slot
from sim.specs.model import Experts, Linear


class FeedForward(NamedTuple):
    """The feed-forward half of a layer; `num_other_parameters` are correction biases, router scales and norms."""

    linears: tuple[Linear, ...]
    experts: Experts | None = None
    num_other_parameters: int = 0


def feed_forward(slot: Slot) -> FeedForward:
    """The experts of a MoE layer, the dense MLP of any other (or of both, where the family has them side by side)."""
    if not is_moe_layer(slot):
        return FeedForward(_mlp(slot, _dense_intermediate_size(slot), slot.traits.dense_module))
    routed = _mixture_of_experts(slot)
    if not slot.traits.parallel_dense_mlp:
        return routed
    dense = _mlp(slot, slot.config.size("intermediate_size"), slot.traits.dense_module)
    return routed._replace(linears=(*dense, *routed.linears))


def is_moe_layer(slot: Slot) -> bool:
    """Whether this layer has routed experts, by whichever of the families' keys the config carries."""
    config, index = slot.config, slot.index
    if not num_experts(slot) or not config.flag("enable_moe_block", default=True):
        return False
    if config.has("moe_layers"):
        return index in config.counts("moe_layers")
    if config.has("interleave_moe_layer_step"):
        return (index + 1) % config.size("interleave_moe_layer_step") == 0
    return (
        index >= config.count("first_k_dense_replace")
        and index % config.size("moe_layer_freq", default=1) == 0
        and index not in config.counts("mlp_only_layers")
        and (index + 1) % config.size("decoder_sparse_step", default=1) == 0
    )


def num_experts(slot: Slot) -> int:
    """Routed experts of a MoE layer, 0 for dense models."""
    return slot.config.count("num_local_experts", "n_routed_experts", "num_experts")


def _dense_intermediate_size(slot: Slot) -> int:
    return slot.config.size(
        "intermediate_size_mlp"
        if num_experts(slot) and slot.config.has("intermediate_size_mlp")
        else "intermediate_size"
    )


def _mlp(slot: Slot, intermediate_size: int, module: str, *, prefix: str = "") -> tuple[Linear, ...]:
    hidden, has_bias = slot.hidden_size, slot.config.flag("mlp_bias")
    return (
        slot.linear(
            f"{prefix}gate_up_proj", f"{module}.gate_proj", hidden, 2 * intermediate_size, "column", bias=has_bias
        ),
        slot.linear(f"{prefix}down_proj", f"{module}.down_proj", intermediate_size, hidden, "row", bias=has_bias),
    )


def _mixture_of_experts(slot: Slot) -> FeedForward:
    config, traits, hidden = slot.config, slot.traits, slot.hidden_size
    count = num_experts(slot)
    router = Linear("gate", hidden, count, "replicated", bias=traits.expert_bias)
    weight = slot.quantization.format_of(f"model.layers.{slot.index}.{traits.moe_module}.experts.0.gate_proj")
    per_token = config.size("num_experts_per_tok", "experts_per_token", "top_k_experts")
    if per_token > count:
        raise ModelError(f"{config.source}: {per_token} experts per token are more than the {count} experts there are.")
    intermediate_size = config.size("moe_intermediate_size", "intermediate_size")
    experts = Experts(count, per_token, hidden, intermediate_size, traits.expert_bias, weight)
    shared_size = _shared_intermediate_size(slot, intermediate_size)
    shared = (
        _mlp(slot, shared_size, f"{traits.moe_module}.{traits.shared_module}", prefix="shared_experts.")
        if shared_size
        else ()
    )
    if shared and traits.shared_expert_gate:
        shared = (*shared, Linear("shared_expert_gate", hidden, 1, "replicated"))
    return FeedForward((router, *shared), experts, _router_parameters(slot, count))


def _shared_intermediate_size(slot: Slot, intermediate_size: int) -> int:
    """All shared experts of a layer as one MLP, as vLLM runs them."""
    config = slot.config
    if config.has("shared_expert_intermediate_size"):
        return config.count("shared_expert_intermediate_size")
    return config.count("n_shared_experts", default=slot.traits.num_shared_experts) * intermediate_size


def _router_parameters(slot: Slot, count: int) -> int:
    """Correction biases (one an expert), and Gemma 4's router scales and extra norms."""
    if slot.traits.parallel_dense_mlp:
        return slot.hidden_size + count + 3 * slot.hidden_size
    has_correction_bias = slot.traits.correction_bias or slot.config.get("topk_method") == "noaux_tc"
    return count if has_correction_bias else 0
