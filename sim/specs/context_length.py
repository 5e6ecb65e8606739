"""The longest context vLLM allows for a model, from its config (vLLM's `_get_and_verify_max_len`)."""

from sim.specs.hf_config import HFConfig

LENGTH_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
FALLBACK_LENGTH = 2048  # vLLM's where a config names none
ALREADY_SCALED = ("su", "longrope", "llama3")  # the length in the config includes the factor


def max_model_len(text: HFConfig) -> int:
    """The smallest of the length keys, scaled by the rope factor where the config's length leaves it out.

    YaRN scales its original length; longrope models stay at theirs, as vLLM does not switch tables in mid-request.
    """
    lengths = [text.size(key) for key in LENGTH_KEYS if text.has(key)]
    derived = min(lengths, default=FALLBACK_LENGTH)
    rope = _rope(text)
    original = rope.count("original_max_position_embeddings") or text.count("original_max_position_embeddings")
    match rope.text("rope_type", "type", default="default"):
        case "longrope" | "su" if original:
            return min(original, derived)
        case "yarn" if original:
            return int(original * rope.number("factor", 1.0))
        case kind if kind in ALREADY_SCALED or text.get("model_type") == "gemma3_text":
            return derived
        case _:
            return int(derived * rope.number("factor", 1.0))


def _rope(text: HFConfig) -> HFConfig:
    """The rope settings, whichever way they are written; those of full attention where each kind has its own."""
    rope = text.section("rope_parameters" if text.has("rope_parameters") else "rope_scaling")
    return rope.section("full_attention") if rope.has("full_attention") else rope
