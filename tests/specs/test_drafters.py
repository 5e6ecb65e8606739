"""The weights and layers that draft."""

import json
from pathlib import Path

import pytest

from sim.errors import ModelError
from sim.specs.drafters import drafter_of
from sim.specs.models import load_model
from sim.specs.speculative_config import SpeculativeConfig

LLAMA = load_model("Llama-3.1-8B")
LAYER = 4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336


def test_an_eagle_head_is_a_layer_behind_a_projection() -> None:
    """Embedding and head are the model's; EAGLE-3 reads three states, asks with two, and has its own head."""
    eagle = drafter_of(SpeculativeConfig("eagle", "M", 3), LLAMA)
    assert eagle is not None
    assert sum(linear.num_parameters for linear in eagle.model.layers[0].linears) == LAYER + 2 * 4096 * 4096
    assert (eagle.head, eagle.owns_head, eagle.owns_embedding) == (LLAMA.output_head, False, False)
    eagle3 = drafter_of(SpeculativeConfig("eagle3", "M", 3), LLAMA)
    assert eagle3 is not None
    asks_with_two = 4096 * 6144
    assert (
        sum(linear.num_parameters for linear in eagle3.model.layers[0].linears)
        == LAYER + asks_with_two + 3 * 4096 * 4096
    )
    assert (eagle3.head.out_features, eagle3.owns_head) == (32_000, True)
    assert "M is taken as one layer in the model's own measures and a head of 32,000 tokens" in str(eagle3.assumed)


def test_a_head_whose_config_is_here_has_its_own_measures(tmp_path: Path) -> None:
    """Layers and draft vocabulary from the file, and nothing is taken for granted."""
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 8192,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "num_hidden_layers": 1,
        "vocab_size": 128256,
        "draft_vocab_size": 16000,
        "max_position_embeddings": 2048,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = drafter_of(SpeculativeConfig("eagle3", str(tmp_path), 3), LLAMA)
    assert found is not None
    assert (found.head.out_features, found.assumed) == (16_000, None)
    assert found.model.layers[0].attention.num_kv_heads == 4


def test_a_model_drafts_with_all_it_has_and_text_with_nothing() -> None:
    """A small model keeps its embedding, which is its head too."""
    small = drafter_of(SpeculativeConfig("draft_model", "Qwen3-0.6B", 3), load_model("Qwen3-32B"))
    assert small is not None
    assert (small.num_layers_a_pass, small.owns_embedding, small.owns_head) == (28, True, False)
    assert drafter_of(SpeculativeConfig("ngram", None, 3), LLAMA) is None
    assert drafter_of(None, LLAMA) is None


def test_a_prediction_layer_is_one_more_of_the_last_kind() -> None:
    """DeepSeek-V3's has 256 experts, and one pass runs it alone."""
    mtp = drafter_of(SpeculativeConfig("mtp", None, 1), load_model("DeepSeek-V3"))
    assert mtp is not None
    layer = mtp.a_pass.layers[0]
    assert (len(mtp.model.layers), layer.experts is not None, layer.linears[0].name) == (1, True, "eh_proj")


def test_a_head_that_nothing_is_known_of_must_be_given() -> None:
    """Latent attention has no heads that one could take over."""
    with pytest.raises(ModelError, match="M cannot be taken for a layer of deepseek-ai/DeepSeek-V3"):
        drafter_of(SpeculativeConfig("eagle3", "M", 3), load_model("DeepSeek-V3"))
