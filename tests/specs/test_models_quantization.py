"""Which weights a checkpoint stores in which format, and what the `quantization` argument does."""

import json
from pathlib import Path
from typing import Any

import pytest

from sim.errors import ConfigError
from sim.specs.model import Layer, ModelSpec
from sim.specs.models import load_model
from tests.specs.test_models_layers import write_config

MOE = {
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "head_dim": 16,
}
NVFP4_GROUP = {
    "targets": ["Linear"],
    "input_activations": {"num_bits": 4, "type": "float", "group_size": 16},
    "weights": {"num_bits": 4, "type": "float", "group_size": 16},
}


def formats(layer: Layer) -> dict[str, str]:
    """The format of each matrix of a layer by its name, experts included."""
    named = {linear.name: linear.weight.name for linear in layer.linears}
    return named | ({"experts": layer.experts.weight.name} if layer.experts else {})


def quantized(folder: Path, quantization_config: dict[str, Any], **changes: Any) -> ModelSpec:
    return load_model(write_config(folder, quantization_config=quantization_config, **changes))


def test_fp8_blocks_leave_embedding_head_norms_and_router_in_16_bits() -> None:
    """Qwen3-235B-A22B-FP8: every projection and expert in 128 x 128 blocks with a 32-bit scale each."""
    model = load_model("Qwen/Qwen3-235B-A22B-FP8")
    assert formats(model.layers[0]) == {
        "qkv_proj": "fp8_block",
        "o_proj": "fp8_block",
        "gate": "bf16",
        "experts": "fp8_block",
    }
    experts = model.layers[0].experts
    assert experts is not None
    assert experts.weight.scale_bits == 32 / (128 * 128)
    assert model.embedding.weight.name == "bf16"
    assert model.output_head.weight.name == "bf16"


def test_mxfp4_is_for_the_experts_of_gpt_oss_alone() -> None:
    """Attention, router and head stay bf16; the experts are read as 4.25 bits and multiplied in bf16."""
    model = load_model("openai/gpt-oss-120b")
    assert formats(model.layers[0]) == {"qkv_proj": "bf16", "o_proj": "bf16", "gate": "bf16", "experts": "mxfp4"}
    experts = model.layers[0].experts
    assert experts is not None
    assert (experts.weight.bits + experts.weight.scale_bits, experts.weight.compute) == (4.25, "bf16")


def test_regular_expressions_in_the_ignore_list_leave_modules_out() -> None:
    """Kimi-K2.5: int4 experts in groups of 32; attention, shared experts and the dense layer in bf16."""
    model = load_model("moonshotai/Kimi-K2.5")
    assert set(formats(model.layers[0]).values()) == {"bf16"}
    by_name = formats(model.layers[1])
    assert by_name.pop("experts") == "int4"
    assert set(by_name.values()) == {"bf16"}


def test_globs_and_partial_paths_in_the_ignore_list_leave_modules_out(tmp_path: Path) -> None:
    """`self_attn*` of one layer and the component `gate` are left out, but gate_up_proj is not."""
    ignore = ["lm_head", "language_model.model.layers.0.self_attn*", "gate"]
    config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ignore}
    first, second = quantized(tmp_path, config).layers
    assert formats(first) == {"qkv_proj": "bf16", "o_proj": "bf16", "gate_up_proj": "nvfp4", "down_proj": "nvfp4"}
    assert set(formats(second).values()) == {"nvfp4"}


@pytest.mark.parametrize(
    "pattern",
    [
        "layers.*.self_attn",
        "model.layers.*.self_attn",
        "model.layers.0.self_attn",
        "model.language_model.layers.0.self_attn.q_proj",
        "language_model.model.layers.0.self_attn.q_proj",
        "re:.*q_proj",
        "re:language_model.*self_attn",
        "q_proj",
    ],
)
def test_module_names_are_matched_however_a_checkpoint_writes_them(tmp_path: Path, pattern: str) -> None:
    """Whole paths, parts of them, globs and regular expressions, with or without a multimodal prefix."""
    by_name = formats(quantized(tmp_path, {"quant_method": "fp8", "modules_to_not_convert": [pattern]}).layers[0])
    assert (by_name["qkv_proj"], by_name["gate_up_proj"]) == ("bf16", "fp8")


def test_an_expert_is_ignored_by_its_own_name_only(tmp_path: Path) -> None:
    """`mlp.gate` names the router, not the experts below mlp; `mlp.experts` names them."""
    fp8 = {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0.mlp.gate", "model.layers.1.mlp.experts"]}
    first, second = quantized(tmp_path, fp8, **MOE).layers
    assert (formats(first)["experts"], formats(second)["experts"]) == ("fp8", "bf16")


def test_hf_quant_config_describes_a_modelopt_checkpoint(tmp_path: Path) -> None:
    """Where config.json says nothing, the file beside it does."""
    write_config(tmp_path)
    quantization = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head", "*o_proj"]}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": quantization}), encoding="utf-8")
    by_name = formats(load_model(tmp_path).layers[0])
    assert (by_name["qkv_proj"], by_name["o_proj"]) == ("fp8", "bf16")


def test_groups_of_different_formats_apply_to_their_targets(tmp_path: Path) -> None:
    """The first group that names a module decides; the rest falls to the group for all Linear layers."""
    int8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
    groups = {
        "group_0": {"targets": ["re:.*self_attn.*"], "weights": int8, "input_activations": int8},
        "group_1": NVFP4_GROUP,
    }
    config = {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head"]}
    by_name = formats(quantized(tmp_path, config).layers[0])
    assert (by_name["qkv_proj"], by_name["down_proj"]) == ("int8", "nvfp4")


def test_modelopt_names_layers_of_mixed_precision_one_by_one(tmp_path: Path) -> None:
    """Layers that are not named stay in 16 bits."""
    layers = {"model.layers.0.mlp.up_proj": {"quant_algo": "NVFP4"}, "model.layers.1.self_attn": {"quant_algo": "FP8"}}
    config = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    first, second = quantized(tmp_path, config).layers
    assert formats(first)["gate_up_proj"] == "nvfp4"
    assert formats(first)["qkv_proj"] == "bf16"
    assert formats(second)["qkv_proj"] == "fp8"


@pytest.mark.parametrize(
    ("config", "name", "bits", "compute"),
    [
        ({"quant_method": "fp8"}, "fp8", 8.0, "fp8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block", 8 + 1 / 512, "fp8"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, "int4", 4 + 20 / 128, "bf16"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True}, "int4", 4.5, "bf16"),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "int8", 8.0, "bf16"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4", 4.5, "bf16"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", 4.5, "fp4"),
        ({"quant_algo": "W4A16_AWQ"}, "int4", 4.125, "bf16"),
        ({"quant_method": "compressed-tensors", "config_groups": {"0": NVFP4_GROUP}}, "nvfp4", 4.5, "fp4"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"0": NVFP4_GROUP | {"input_activations": None}}},
            "nvfp4",
            4.5,
            "bf16",
        ),
    ],
)
def test_methods_give_stored_bits_and_compute_type(
    tmp_path: Path, config: dict[str, Any], name: str, bits: float, compute: str
) -> None:
    """Bits a weight with its scales; weight-only formats are multiplied in bf16."""
    weight = quantized(tmp_path, config).layers[0].linears[0].weight
    assert (weight.name, weight.bits + weight.scale_bits, weight.compute) == (name, bits, compute)


def test_quantization_fp8_quantises_a_bf16_model_but_its_embedding_head_and_router() -> None:
    """As `--quantization fp8` does at load: 8.03 B parameters, of which 1.05 B of vocabulary stay in 2 bytes."""
    model = load_model("Llama-3.1-8B", quantization="fp8")
    assert set(formats(model.layers[0]).values()) == {"fp8"}
    assert model.output_head.weight.name == "bf16"
    assert model.quantization == "fp8"
    assert model.num_parameters == load_model("Llama-3.1-8B").num_parameters
    assert formats(load_model("Mixtral-8x7B-v0.1", quantization="fp8").layers[0])["gate"] == "bf16"


@pytest.mark.parametrize(("precision", "bits"), [("fp8", 8.0), ("fp4", 4.5), ("int4", 4.125)])
def test_precisions_of_measured_runs_quantise_16_bit_models(precision: str, bits: float) -> None:
    """fp8, fp4 (NVFP4) and int4 (groups of 128) shrink every linear layer."""
    weight = load_model("meta-llama/Llama-3.1-70B", quantization=precision).layers[0].linears[0].weight
    assert weight.bits + weight.scale_bits == bits


@pytest.mark.parametrize(
    ("name", "precision"),
    [("MiniMax-M2.5", "fp8"), ("gpt-oss-120b", "fp4"), ("Kimi-K2.5", "int4"), ("Qwen3-32B-FP8", "fp8")],
)
def test_a_checkpoint_already_in_that_precision_stays_as_it_is(name: str, precision: str) -> None:
    """Asking for what a checkpoint has changes nothing."""
    assert load_model(name, quantization=precision).layers == load_model(name).layers


def test_fp4_of_a_quantised_model_is_its_fp4_checkpoint() -> None:
    """MiniMax-M2.5 is published in fp8 and, with attention in bf16, in NVFP4."""
    model = load_model("MiniMaxAI/MiniMax-M2.5", quantization="fp4")
    assert formats(model.layers[0])["qkv_proj"] == "bf16"
    assert formats(model.layers[0])["experts"] == "nvfp4"
    assert model.name == "MiniMaxAI/MiniMax-M2.5"


@pytest.mark.parametrize(
    ("name", "quantization", "expected"),
    [
        ("Llama-3.1-8B", "fp9", "`quantization` must be one of fp8"),
        ("Llama-3.1-8B", "awq", "needs a checkpoint quantised that way"),
        ("gpt-oss-20b", "fp8", "contradicts"),
    ],
)
def test_a_quantization_that_cannot_be_is_refused(name: str, quantization: str, expected: str) -> None:
    """Unknown methods, methods that need their own checkpoint, and contradictions each say so."""
    with pytest.raises(ConfigError, match=expected):
        load_model(name, quantization=quantization)


@pytest.mark.parametrize(
    ("scheme", "bits", "compute"),
    [("W4A16", 4 + 16 / 128, "bf16"), ("W8A16", 8.0, "bf16"), ("W8A8", 8.0, "int8"), ("int4", 4 + 16 / 128, "bf16")],
)
def test_schemes_of_llm_compressor_are_what_a_checkpoint_would_be(scheme: str, bits: float, compute: str) -> None:
    """Of a 16-bit model from the catalogue, its vocabulary left as it is."""
    model = load_model("Llama-2-13b-hf", quantization=scheme)
    weight = model.layers[0].linears[0].weight
    assert (weight.bits + weight.scale_bits, weight.compute) == (bits, compute)
    assert load_model("Llama-2-13b-hf").num_parameters == pytest.approx(13.02e9, rel=1e-3)


def test_gpt_3_has_its_papers_parameters() -> None:
    """175 B in 96 layers of two matrices for the feed-forward; 4.5 MiB of KV a token."""
    model = load_model("GPT-3")
    assert model.num_parameters == pytest.approx(174.6e9, rel=1e-3)
    layer = model.layers[0]
    assert [linear.name for linear in layer.linears[-2:]] == ["up_proj", "down_proj"]
    assert model.num_layers * layer.attention.kv_numbers_per_token * 2 == 96 * 2 * 12288 * 2
