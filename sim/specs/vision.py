"""How many parameters a multimodal checkpoint's vision tower adds: vLLM loads them, text never runs them."""

from sim.specs.hf_config import HFConfig, text_config


def num_vision_parameters(config: HFConfig) -> int:
    """Counted from `vision_config`: to the last one for Qwen 3.5, Gemma 3 and Llama 4, by its large matrices for others."""
    vision = config.section("vision_config")
    if config.has("num_vision_parameters"):
        return config.count("num_vision_parameters")
    if not vision.has("hidden_size") and not vision.has("vt_hidden_size"):
        return 0
    if vision.has("spatial_merge_size") and vision.has("out_hidden_size"):
        return _qwen_tower(vision)
    text_hidden = text_config(config).size("hidden_size")
    match vision.text("model_type", default=""):
        case "siglip_vision_model":
            return _siglip_tower(vision, text_hidden)
        case "llama4_vision_model":
            return _llama4_tower(vision, text_hidden)
        case _:
            return _blocks(vision, has_biases=False)


def _blocks(vision: HFConfig, *, has_biases: bool = True) -> int:
    """Transformer blocks of four square projections and a two-layer MLP; biases and two LayerNorms where counted."""
    hidden, intermediate = (
        vision.size("hidden_size", "vt_hidden_size"),
        vision.size("intermediate_size", "vt_intermediate_size"),
    )
    small = 4 * hidden + intermediate + hidden + 4 * hidden if has_biases else 0
    block = 4 * hidden**2 + 2 * hidden * intermediate + small
    return vision.size("num_hidden_layers", "vt_num_hidden_layers", "depth") * block


def _qwen_tower(vision: HFConfig) -> int:
    """Patch and position embeddings, the blocks, and a merger of neighbouring patches into the text's width."""
    hidden, out = vision.size("hidden_size"), vision.size("out_hidden_size")
    patch = vision.count("in_channels", default=3) * vision.size("temporal_patch_size") * vision.size("patch_size") ** 2
    merged = hidden * vision.size("spatial_merge_size") ** 2
    merger = 2 * hidden + merged * (merged + 1) + merged * out + out
    return _blocks(vision) + (patch + 1 + vision.count("num_position_embeddings")) * hidden + merger


def _siglip_tower(vision: HFConfig, text_hidden: int) -> int:
    """Gemma 3's SigLIP with its last norm, and a normed projection into the text's width."""
    hidden, patch_size = vision.size("hidden_size"), vision.size("patch_size")
    num_patches = (vision.size("image_size") // patch_size) ** 2
    embeddings = (3 * patch_size**2 + 1 + num_patches) * hidden
    return _blocks(vision) + embeddings + 2 * hidden + hidden + hidden * text_hidden


def _llama4_tower(vision: HFConfig, text_hidden: int) -> int:
    """A ViT with a class token and norms at both ends, a pixel-shuffle adapter and a projector, both without biases."""
    hidden, patch_size = vision.size("hidden_size"), vision.size("patch_size")
    num_patches = (vision.size("image_size") // patch_size) ** 2
    embeddings = (3 * patch_size**2 + 1 + num_patches + 1) * hidden
    adapter_in, adapter_out = vision.size("projector_input_dim"), vision.size("projector_output_dim")
    adapter = vision.size("intermediate_size") * adapter_in + adapter_in * adapter_out
    return _blocks(vision) + embeddings + 4 * hidden + adapter + vision.size("vision_output_dim") * text_hidden
