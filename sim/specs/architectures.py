"""From the keys of a Hugging Face config to a ModelSpec: what each model_type adds to the common decoder."""

from collections.abc import Mapping

from sim.errors import ModelError
from sim.specs.attention import Mixer, grouped_query_attention, multi_head_latent_attention
from sim.specs.compressed_attention import compressed_attention
from sim.specs.context_length import max_model_len
from sim.specs.feed_forward import feed_forward
from sim.specs.hf_config import HFConfig, text_config
from sim.specs.layer_plan import LayerPlan, plan_layers
from sim.specs.layer_slot import Slot
from sim.specs.linear_attention import linear_attention
from sim.specs.model import AttentionKind, Layer, Linear, ModelSpec
from sim.specs.quantization import Quantization
from sim.specs.traits import COMMON_DECODER, TRAITS, Traits
from sim.specs.vision import num_vision_parameters

ATTENTION_KINDS: Mapping[str, AttentionKind] = {
    "full_attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
}


def build_model(config: HFConfig, *, name: str, quantization: Quantization) -> ModelSpec:
    """The text model that a config describes; raises ModelError for what is missing or impossible.

    A model_type that is not known is read as the common decoder, and the result says so in `approximation`.
    """
    architecture = ", ".join(config.texts("architectures"))
    if config.flag("is_encoder_decoder"):
        raise ModelError(f"{config.source} describes an encoder-decoder model; only decoders can be simulated.")
    text = text_config(config)
    model_type = text.text("model_type", default="llama")
    traits = TRAITS.get(model_type, COMMON_DECODER)
    hidden_size, vocab_size = text.size("hidden_size"), text.size("vocab_size")
    plans = plan_layers(text, traits)
    embedding = Linear("embed_tokens", hidden_size, vocab_size, "vocab")
    lm_head = Linear("lm_head", hidden_size, vocab_size, "vocab", weight=quantization.format_of("lm_head"))
    return ModelSpec(
        name=name,
        architecture=architecture,
        model_type=model_type,
        hidden_size=hidden_size,
        intermediate_size=text.size("intermediate_size", "moe_intermediate_size"),
        vocab_size=vocab_size,
        max_model_len=max_model_len(text),
        num_attention_heads=text.size("num_attention_heads"),
        layers=tuple(_layer(Slot(text, traits, quantization, index), plan) for index, plan in enumerate(plans)),
        embedding=embedding,
        lm_head=None if _is_tied(config, text, traits) else lm_head,
        num_final_parameters=hidden_size,
        num_vision_parameters=num_vision_parameters(config),
        num_prediction_layers=text.count("num_nextn_predict_layers", "mtp_num_hidden_layers"),
        dtype=_dtype(config, text),
        quantization=quantization.name,
        source=config.source,
        approximation=_approximation(text, model_type, traits),
    )


def _layer(slot: Slot, plan: LayerPlan) -> Layer:
    mixer, ffn = _mixer(slot, plan.kind), feed_forward(slot, plan.feed_forward)
    num_norms = slot.traits.norms_per_layer // (2 if plan.feed_forward == "none" else 1)
    others = num_norms * slot.hidden_size + mixer.num_other_parameters + ffn.num_other_parameters
    return Layer(mixer.attention, (*mixer.linears, *ffn.linears), ffn.experts, others)


def _mixer(slot: Slot, kind: str) -> Mixer:
    config = slot.config
    if kind == "linear_attention":
        return linear_attention(slot)
    if config.has("o_groups"):
        return compressed_attention(slot, kind)
    if config.has("kv_lora_rank"):
        return multi_head_latent_attention(slot)
    if kind not in ATTENTION_KINDS:
        raise ModelError(f"{config.source}: `layer_types` has {kind!r}, which is no known kind of attention.")
    return grouped_query_attention(slot, ATTENTION_KINDS[kind])


def _is_tied(config: HFConfig, text: HFConfig, traits: Traits) -> bool:
    default = config.flag("tie_word_embeddings", default=traits.tied_by_default)
    return text.flag("tie_word_embeddings", default=default)


def _dtype(config: HFConfig, text: HFConfig) -> str:
    return text.text("dtype", "torch_dtype", default=config.text("dtype", "torch_dtype", default="bfloat16"))


def _approximation(text: HFConfig, model_type: str, traits: Traits) -> str | None:
    if model_type not in TRAITS:
        return f"model_type {model_type!r} is not known here and was read as a common decoder"
    if text.count("num_kv_shared_layers") or text.count("hidden_size_per_layer_input"):
        return "per-layer embeddings and layers that share a KV cache are read as ordinary layers"
    return traits.approximation
