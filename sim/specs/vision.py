"""How many parameters a multimodal checkpoint's vision tower adds: vLLM loads them, text never runs them."""

from sim.specs.hf_config import HFConfig


def num_vision_parameters(config: HFConfig) -> int:
    """Counted from `vision_config`: to the last one for Qwen's towers, by the encoder's matrices alone for others."""
    vision = config.section("vision_config")
    if config.has("num_vision_parameters"):
        return config.count("num_vision_parameters")
    if not vision.has("hidden_size") and not vision.has("vt_hidden_size"):
        return 0
    if vision.has("spatial_merge_size") and vision.has("out_hidden_size"):
        return _qwen_tower(vision)
    hidden = vision.size("hidden_size", "vt_hidden_size")
    intermediate = vision.size("intermediate_size", "vt_intermediate_size")
    return vision.size("num_hidden_layers", "vt_num_hidden_layers", "depth") * (
        4 * hidden**2 + 2 * hidden * intermediate
    )


def _qwen_tower(vision: HFConfig) -> int:
    """Patch and position embeddings, blocks with biases and two LayerNorms, and the merger into the text's width."""
    hidden, intermediate, out = (
        vision.size("hidden_size"),
        vision.size("intermediate_size"),
        vision.size("out_hidden_size"),
    )
    patch = vision.count("in_channels", default=3) * vision.size("temporal_patch_size") * vision.size("patch_size") ** 2
    block = 4 * hidden * (hidden + 1) + 2 * hidden * intermediate + intermediate + hidden + 4 * hidden
    merged = hidden * vision.size("spatial_merge_size") ** 2
    merger = 2 * hidden + merged * (merged + 1) + merged * out + out
    embeddings = patch * hidden + hidden + vision.count("num_position_embeddings") * hidden
    return vision.size("depth") * block + embeddings + merger
