"""What is wrong with a model is said in one sentence that names file, key and value."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sim.errors import ModelError
from sim.specs import huggingface
from sim.specs.models import load_model
from tests.specs.test_models_layers import write_config

MOE = {"num_local_experts": 4, "num_experts_per_tok": 8}
FP8 = {"quant_method": "fp8"}


def error_of(model: str | Path) -> str:
    with pytest.raises(ModelError) as caught:
        load_model(model)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith((".", "?"))
    return message


def test_an_unknown_name_gets_the_nearest_ones() -> None:
    """A misspelt short name and a folder that is not there both say what was looked for."""
    assert "Did you mean Llama-3.1-8B" in error_of("Llama-3.1-9B")
    assert "neither in the catalogue nor a path that exists" in error_of("./no/such/folder")
    assert "neither in the catalogue nor a path that exists" in error_of("x" * 5000)


def test_a_hub_id_without_a_network_is_an_error_with_the_nearest_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the hub's client raises becomes the reason."""

    def no_network(*_: str) -> dict[str, Any]:
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(huggingface, "_hub_file", no_network)
    message = error_of("Qwen/Qwen3-33B")
    assert "huggingface.co gave no config.json: Name or service not known." in message
    assert "Did you mean Qwen/Qwen3-32B" in message


def test_a_hub_id_is_read_like_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cached or downloaded config goes through the same reader."""
    values = json.loads(write_config(tmp_path, model_type="brandnew").read_text(encoding="utf-8"))
    monkeypatch.setattr(huggingface, "_hub_file", lambda _, file: values if file == "config.json" else {})
    monkeypatch.setattr(huggingface, "_with_defaults", lambda values, _: values)
    assert load_model("acme/brandnew-1B").num_layers == 2


def test_folders_without_a_config_are_told_from_those_with_one(tmp_path: Path) -> None:
    """An empty folder and a tokenizer's folder hold no config.json."""
    assert "holds no config.json" in error_of(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    assert "holds no config.json" in error_of(str(tmp_path))
    assert "holds no config.json" in error_of(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"model_type": "llama",}', "line 1, column 2[34]"),
        (b"", "line 1, column 1"),
        (b"[1, 2]", "must hold one JSON object with a model's keys, got a list"),
        (b"\x89PNG\r\n\x1a\n\xff\xfe", "must be a JSON file in UTF-8, got binary content"),
        (b"[" * 200_000, "must not be nested deeper"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "must have integers of at most 64 bits"),
        (b'{"tokenizer_class": "LlamaTokenizer"}', "the key `vocab_size` is missing|the key `hidden_size` is missing"),
    ],
)
def test_broken_files_are_told_with_their_place(tmp_path: Path, content: bytes, expected: str) -> None:
    """Line and column of broken JSON, or what the file is instead."""
    file = tmp_path / "config.json"
    file.write_bytes(content)
    message = error_of(file)
    assert str(file) in message
    assert re.search(expected, message)


@pytest.mark.parametrize(
    "key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size"]
)
def test_a_missing_key_is_named_with_its_file(tmp_path: Path, key: str) -> None:
    """For a model_type whose class has no defaults, each key that sizes the model must be there."""
    file = write_config(tmp_path, **{"model_type": "brandnew", key: None})
    assert error_of(file) == f"{file}: the key `{key}` is missing; a model's config.json must have it."


@pytest.mark.parametrize("value", [0, -1, 1.5, "64", True, [64], 10**15, float("nan"), float("inf")])
@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "vocab_size", "max_position_embeddings"])
def test_impossible_sizes_are_refused(tmp_path: Path, key: str, value: object) -> None:
    """Zero, negative, fractional, infinite and absurd numbers and other types name the key and what was got."""
    message = error_of(write_config(tmp_path, **{key: value}))
    assert f"`{key}` must be" in message
    assert repr(value) in message


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"num_hidden_layers": 1_000_000}, "`num_hidden_layers` must be at most 10,000"),
        ({"num_key_value_heads": 3}, "`num_attention_heads` 4 must be a multiple of `num_key_value_heads` 3"),
        ({"layer_types": ["full_attention"]}, "`layer_types` lists 1 layers, but `num_hidden_layers` is 2"),
        ({"layer_types": ["full_attention", "telepathy"]}, "'telepathy', which is no known kind of attention"),
        ({"layer_types": "full_attention"}, "`layer_types` must be a list of texts"),
        ({"compress_ratios": [4, 5]}, "`compress_ratios` must be 0, 4 or 128"),
        ({"hybrid_override_pattern": "ME*EE"}, "has 'E' where a mixer"),
        ({"hybrid_override_pattern": "EM"}, "has 'E' where a mixer"),
        ({"rope_scaling": "linear"}, "`rope_scaling` must be an object"),
        ({"rope_scaling": {"type": "linear", "factor": -1}}, "`factor` must be a number above 0"),
        ({"attention_bias": "yes"}, "`attention_bias` must be true or false"),
        ({"text_config": 3}, "`text_config` must be an object"),
        ({"model_type": 7}, "`model_type` must be a text"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        (MOE, "8 experts per token are more than the 4 experts"),
        ({"mlp_only_layers": 3, **MOE}, "`mlp_only_layers` must be a list of numbers"),
        ({"quantization_config": "fp8"}, "`quantization_config` must be an object"),
        ({"quantization_config": {"quant_method": "fp9"}}, "`quant_method` 'fp9' is not one of .* Did you mean fp8"),
        ({"quantization_config": {"bits": 4}}, "`quant_method` must be a text, got nothing"),
        ({"quantization_config": FP8 | {"ignored_layers": ["re:("]}}, "no regular expression"),
        ({"quantization_config": FP8 | {"weight_block_size": [128]}}, "`weight_block_size` must be two numbers"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP5"}}, "`quant_algo` 'NVFP5'"),
        ({"quantization_config": {"quant_method": "awq", "group_size": 0}}, "`group_size` must be a whole number"),
        ({"quantization_config": {"quant_method": "awq", "w_bit": 0}}, "`w_bit` must be a whole number"),
        (
            {
                "quantization_config": {
                    "quant_method": "compressed-tensors",
                    "config_groups": {"0": {"weights": {"num_bits": 3, "type": "float"}}},
                }
            },
            "quantised floats have 4 or 8 bits",
        ),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    """What cannot be a model says which key contradicts what."""
    message = error_of(write_config(tmp_path, **({"model_type": "brandnew"} | changes)))
    assert re.search(expected, message)
