"""Which kind each layer of a stack is: how it mixes tokens, and what feed-forward follows."""

from typing import Literal, NamedTuple

from sim.errors import ModelError
from sim.specs.hf_config import HFConfig
from sim.specs.traits import Traits

MAX_LAYERS = 10_000
COMPRESSED_KINDS = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}


class LayerPlan(NamedTuple):
    """`kind` in transformers' words (full_attention, sliding_attention, linear_attention, ...)."""

    kind: str
    feed_forward: Literal["dense", "experts", "none"]


def plan_layers(text: HFConfig, traits: Traits) -> tuple[LayerPlan, ...]:
    """One plan a decoder layer; raises ModelError where the config's lists contradict its number of layers."""
    if text.has("hybrid_override_pattern"):
        return _from_pattern(text)
    count = text.size("num_hidden_layers")
    if count > MAX_LAYERS:
        raise ModelError(f"{text.source}: `num_hidden_layers` must be at most {MAX_LAYERS:,}, got {count:,}.")
    kinds = _kinds(text, traits, count)
    return tuple(
        LayerPlan(kind, "experts" if _has_experts(text, index) else "dense") for index, kind in enumerate(kinds)
    )


def num_experts(text: HFConfig) -> int:
    """Routed experts of a MoE layer, 0 for dense models."""
    return text.count("num_local_experts", "n_routed_experts", "num_experts")


def _kinds(text: HFConfig, traits: Traits, count: int) -> tuple[str, ...]:
    listed = _compressed_kinds(text, count) or _kimi_kinds(text, count) or text.texts("layer_types")
    if listed:
        if len(listed) != count:
            raise ModelError(
                f"{text.source}: `layer_types` lists {len(listed)} layers, but `num_hidden_layers` is {count}."
            )
        return listed
    default = traits.full_attention_interval or 0
    interval = text.count("full_attention_interval", "sliding_window_pattern", default=default)
    if interval:
        return tuple(traits.windowed_kind if (index + 1) % interval else "full_attention" for index in range(count))
    slides = text.has("sliding_window") and text.flag("use_sliding_window", default=traits.slides_by_default)
    return ("sliding_attention" if slides else "full_attention",) * count


def _compressed_kinds(text: HFConfig, count: int) -> tuple[str, ...]:
    """DeepSeek-V4 lists compression ratios, those of its prediction layers after the others."""
    ratios = text.counts("compress_ratios")[:count]
    if not all(ratio in COMPRESSED_KINDS for ratio in ratios):
        raise ModelError(f"{text.source}: `compress_ratios` must be 0, 4 or 128 for each layer, got {list(ratios)}.")
    return tuple(COMPRESSED_KINDS[ratio] for ratio in ratios)


def _kimi_kinds(text: HFConfig, count: int) -> tuple[str, ...]:
    """Kimi Linear and K3 number their full-attention layers from 1."""
    full = text.section("linear_attn_config").counts("full_attn_layers")
    if not full:
        return ()
    return tuple("full_attention" if index + 1 in full else "linear_attention" for index in range(count))


def _has_experts(text: HFConfig, index: int) -> bool:
    """By whichever of the families' keys the config carries."""
    if not num_experts(text) or not text.flag("enable_moe_block", default=True):
        return False
    if text.has("moe_layers"):
        return index in text.counts("moe_layers")
    return (
        index >= text.count("first_k_dense_replace")
        and index % text.size("moe_layer_freq", default=1) == 0
        and index not in text.counts("mlp_only_layers")
        and (index + 1) % text.size("decoder_sparse_step", "interleave_moe_layer_step", default=1) == 0
    )


def _from_pattern(text: HFConfig) -> tuple[LayerPlan, ...]:
    """Nemotron-H lists mixers (M, *) and feed-forwards (E, -) one by one: a feed-forward joins the mixer before it."""
    plans: list[LayerPlan] = []
    for letter in text.text("hybrid_override_pattern"):
        match letter:
            case "M":
                plans.append(LayerPlan("linear_attention", "none"))
            case "*":
                plans.append(LayerPlan("full_attention", "none"))
            case "E" | "-" if plans and plans[-1].feed_forward == "none":
                plans[-1] = plans[-1]._replace(feed_forward="experts" if letter == "E" else "dense")
            case _:
                raise ModelError(
                    f"{text.source}: `hybrid_override_pattern` has {letter!r} where a mixer (M or *) or its "
                    "feed-forward (E or -) is due."
                )
    return tuple(plans)
