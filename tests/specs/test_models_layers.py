"""Layers as matrices: what a rank holds, what a token keeps, and how long a context may be."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.specs.model import WeightFormat
from sim.specs.models import load_model
from sim.units import GIB

POWERS_OF_TWO = st.sampled_from([1, 2, 4, 8, 16])
SOME_MODELS = ["Llama-3.1-8B", "Qwen3-30B-A3B", "DeepSeek-V3", "gpt-oss-20b", "Qwen3.5-27B", "gemma-3-27b-it"]


def write_config(folder: Path, **changes: Any) -> Path:
    """A small Llama's config.json with some keys changed, or left out where None."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 1000,
        "max_position_embeddings": 4096,
    } | changes
    file = folder / "config.json"
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not None}), encoding="utf-8")
    return file


def test_qkv_proj_under_tensor_parallelism_replicates_kv_heads_that_are_too_few() -> None:
    """Llama-3.1-8B has 32 query and 8 K/V heads of 128: at TP 16 each rank has 2 and still 1 of K and V."""
    qkv_proj = load_model("Llama-3.1-8B").layers[0].linears[0]
    assert qkv_proj.name == "qkv_proj"
    assert qkv_proj.out_features == (32 + 2 * 8) * 128
    assert qkv_proj.per_rank(2).out_features == (16 + 2 * 4) * 128
    assert qkv_proj.per_rank(8).out_features == (4 + 2 * 1) * 128
    assert qkv_proj.per_rank(16).out_features == (2 + 2 * 1) * 128


def test_matrices_are_cut_as_vllm_cuts_them() -> None:
    """Columns of qkv_proj and gate_up_proj, rows of o_proj and down_proj; the vocabulary is padded to 64."""
    model = load_model("Qwen3-8B")
    by_name = {linear.name: linear.per_rank(4) for linear in model.layers[0].linears}
    assert (by_name["o_proj"].in_features, by_name["o_proj"].out_features) == (1024, 4096)
    assert by_name["gate_up_proj"].out_features == 2 * 12_288 // 4
    assert by_name["down_proj"].in_features == 12_288 // 4
    assert load_model("gemma-3-27b-it").embedding.per_rank(4).out_features == 262_208 // 4
    assert load_model("Yi-34B").output_head.per_rank(1).out_features == 64_000


@pytest.mark.parametrize(("name", "weight"), [("MiniMax-M2.5", "fp32"), ("GLM-4.6", "fp32"), ("DeepSeek-V3", "bf16")])
def test_some_routers_are_held_in_32_bits(name: str, weight: str) -> None:
    """As vLLM's model classes have them, whatever the checkpoint does."""
    layer = load_model(name).layers[-1]
    assert next(linear.weight.name for linear in layer.linears if linear.name == "gate") == weight


def test_a_vocabulary_is_padded_to_64_before_it_is_split(tmp_path: Path) -> None:
    """1,000 tokens become 1,024: 256 for each of 4 ranks."""
    model = load_model(write_config(tmp_path))
    assert model.embedding.per_rank(1).out_features == 1024
    assert model.embedding.per_rank(4).out_features == 256


def test_mla_matrices_and_cache_are_those_of_deepseek() -> None:
    """The latent projections are replicated, heads are split, and 576 numbers a token stay on every rank."""
    layer = load_model("DeepSeek-V3").layers[-1]
    by_name = {linear.name: linear.per_rank(8) for linear in layer.linears}
    assert (by_name["fused_qkv_a_proj"].in_features, by_name["fused_qkv_a_proj"].out_features) == (7168, 1536 + 576)
    assert by_name["q_b_proj"].out_features == 128 // 8 * 192
    assert by_name["kv_b_proj"].out_features == 128 // 8 * 256
    assert layer.attention.kv_numbers_per_token == layer.attention.per_rank(8).kv_numbers_per_token == 576


def test_tied_embeddings_serve_as_the_output_head() -> None:
    """Qwen3-0.6B keeps one matrix, counted once and multiplied as lm_head."""
    model = load_model("Qwen3-0.6B")
    assert model.lm_head is None
    assert (model.output_head.name, model.output_head.out_features) == ("lm_head", 151_936)
    assert model.num_parameters == 596_049_920


@pytest.mark.parametrize(("name", "gib"), [("openai/gpt-oss-20b", 12.8), ("openai/gpt-oss-120b", 60.8)])
def test_weight_bytes_are_the_size_of_the_published_checkpoint(name: str, gib: float) -> None:
    """The published gpt-oss checkpoints are 12.8 and 60.8 GiB."""
    assert load_model(name).weight_bytes() / GIB == pytest.approx(gib, abs=0.05)


def test_weight_bytes_of_bf16_are_two_a_parameter() -> None:
    """Llama-3.1-8B: 8,030,261,248 parameters, 14.96 GiB."""
    assert load_model("Llama-3.1-8B").weight_bytes() == 2 * 8_030_261_248


def test_weight_bytes_hold_the_vision_tower() -> None:
    """Gemma-3-27B loads 27,432,406,640 numbers of two bytes (its vocabulary is a multiple of 64)."""
    assert load_model("gemma-3-27b-it").weight_bytes() == 2 * 27_432_406_640


@pytest.mark.parametrize("name", SOME_MODELS)
@given(tensor_parallel_size=POWERS_OF_TWO)
def test_ranks_together_hold_at_least_the_whole_model(name: str, tensor_parallel_size: int) -> None:
    """Splitting loses nothing, and no rank holds more than the whole."""
    model = load_model(name)
    per_rank, whole = model.weight_bytes(tensor_parallel_size), model.weight_bytes(1)
    assert per_rank * tensor_parallel_size >= whole >= per_rank


def test_interleaved_layers_follow_each_family_s_pattern() -> None:
    """Maverick routes every second layer, DeepSeek-V3 all but the first three, gpt-oss slides every other layer."""
    maverick, deepseek, gpt_oss = (
        load_model(name).layers for name in ("Llama-4-Maverick-17B-128E", "DeepSeek-V3", "gpt-oss-20b")
    )
    assert [bool(layer.experts) for layer in maverick[:4]] == [False, True, False, True]
    assert [layer.attention.kind for layer in maverick[:4]] == ["chunked", "chunked", "chunked", "full"]
    assert [bool(layer.experts) for layer in deepseek[:4]] == [False, False, False, True]
    assert [layer.attention.window for layer in gpt_oss[:2]] == [128, None]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"moe_layer_freq": 2}, [True, False, True, False]),
        ({"decoder_sparse_step": 2}, [False, True, False, True]),
        ({"mlp_only_layers": [1]}, [True, False, True, True]),
        ({"first_k_dense_replace": 3}, [False, False, False, True]),
        ({"moe_layers": [2]}, [False, False, True, False]),
        ({"enable_moe_block": False}, [False, False, False, False]),
    ],
)
def test_each_family_s_keys_say_which_layers_have_experts(
    tmp_path: Path, keys: dict[str, Any], expected: list[bool]
) -> None:
    """Frequencies count from layer 0, steps from 1, lists name layers."""
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    config = write_config(tmp_path, model_type="brandnew", num_hidden_layers=4, **experts, **keys)
    assert [bool(layer.experts) for layer in load_model(config).layers] == expected


def test_hybrid_layers_keep_a_state_instead_of_a_cache() -> None:
    """Qwen3.5-27B: 48 of 64 layers are gated delta nets, with 48 fp32 states of 128 x 128 and 3 convolution inputs."""
    model = load_model("Qwen3.5-27B")
    linear = [layer.attention for layer in model.layers if layer.attention.kind == "linear"]
    assert len(linear) == 48
    assert linear[0].kv_numbers_per_token == 0
    assert linear[0].state_bytes == 48 * 128 * 128 * 4 + (2 * 16 * 128 + 48 * 128) * 3 * 2
    assert linear[0].per_rank(4).state_bytes == linear[0].state_bytes // 4


def test_gemma_4_has_larger_and_fewer_heads_where_it_attends_fully() -> None:
    """Sliding layers have 8 K/V heads of 256, full ones 2 of 512 with keys used as values."""
    sliding, full = (load_model("gemma-4-26B-A4B").layers[index] for index in (0, 5))
    assert (sliding.attention.num_kv_heads, sliding.attention.head_dim, sliding.attention.window) == (8, 256, 1024)
    assert (full.attention.num_kv_heads, full.attention.head_dim, full.attention.window) == (2, 512, None)
    assert full.linears[0].out_features == 16 * 512 + 2 * 512


def test_sparse_attention_says_what_its_indexer_keeps_and_reads() -> None:
    """DeepSeek-V3.2 reads 2,048 tokens chosen by keys of 128 numbers."""
    attention = load_model("DeepSeek-V3.2").layers[0].attention
    assert (attention.kind, attention.index_topk, attention.index_head_dim) == ("mla", 2048, 128)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 4096),
        ({"model_max_length": 1024}, 1024),
        ({"max_position_embeddings": None}, 2048),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 16_384),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 8192),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 512}}, 4096),
        ({"model_type": "gemma3_text", "rope_scaling": {"rope_type": "linear", "factor": 8.0}}, 4096),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}}, 16_384),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1.0]}, "original_max_position_embeddings": 1024}, 1024),
    ],
)
def test_max_model_len_follows_vllm_s_rule(tmp_path: Path, changes: dict[str, Any], expected: int) -> None:
    """The smallest length key times the rope factor; YaRN scales its original length, llama3 and longrope do not scale."""
    assert load_model(write_config(tmp_path, **changes)).max_model_len == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("DeepSeek-V3", 163_840), ("gpt-oss-20b", 131_072), ("Llama-3.1-8B", 131_072), ("gemma-3-27b-it", 131_072)],
)
def test_max_model_len_of_known_models(name: str, expected: int) -> None:
    """As vLLM's own configuration derives them."""
    assert load_model(name).max_model_len == expected


def test_an_unknown_model_type_is_read_as_a_common_decoder_and_says_so(tmp_path: Path) -> None:
    """The keys suffice for a dense decoder; the spec names what was assumed."""
    model = load_model(write_config(tmp_path, model_type="brandnew"))
    assert model.num_layers == 2
    assert model.approximation is not None
    assert "'brandnew'" in model.approximation


def test_a_nested_text_config_is_the_model(tmp_path: Path) -> None:
    """Multimodal configs hold the language model's keys one level down."""
    flat = json.loads(write_config(tmp_path).read_text(encoding="utf-8"))
    outer = {"model_type": "somevlm", "architectures": ["SomeVLM"], "text_config": flat}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(outer), encoding="utf-8")
    assert load_model(file).hidden_size == 64
    assert load_model(file).architecture == "SomeVLM"


def test_a_folder_gives_the_model_its_name(tmp_path: Path) -> None:
    """The folder and the config.json in it name the same model."""
    folder = tmp_path / "my-model"
    folder.mkdir()
    file = write_config(folder)
    assert load_model(folder).name == load_model(file).name == load_model(str(file)).name == "my-model"


@given(num_parameters=st.integers(0, 10**12))
def test_scales_add_to_the_stored_size(num_parameters: int) -> None:
    """A format's bytes are bits and scale bits over eight, rounded up."""
    mxfp4 = WeightFormat("mxfp4", 4.0, 8 / 32)
    assert mxfp4.num_bytes(num_parameters) == -(-num_parameters * 17 // 32)
