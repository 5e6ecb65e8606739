"""What a drafter takes: its weights, and KV cache for its layers."""

import pytest

from sim.deployment import deploy
from sim.errors import ConfigError
from sim.memory.plan import MemoryPlan
from sim.memory.weights import weight_parts
from sim.specs.engine import EngineConfig
from sim.specs.models import load_model
from sim.specs.speculative_config import SpeculativeConfig
from sim.specs.stages import pipeline_stages


def planned(config: SpeculativeConfig | None, model: str = "Llama-3.1-8B", tp: int = 1) -> MemoryPlan:
    engine = EngineConfig(speculative_config=config, tensor_parallel_size=tp)
    return deploy(model, "h100-sxm", engine).plan


def drafter_bytes(plan: MemoryPlan) -> int:
    return sum(line.num_bytes for line in plan.ledger if line.name == "drafter")


def test_an_eagle_head_adds_a_layer_to_every_block() -> None:
    """Weights of 16 bits: a layer, a projection of two states, norms; 33 layers of 16 tokens x 2 x 8 x 128 numbers."""
    plain, eagle = planned(None), planned(SpeculativeConfig("eagle", "M", 3))
    matrices = 4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336 + 2 * 4096 * 4096
    assert drafter_bytes(eagle) == 2 * (matrices + 3 * 4096)
    assert drafter_bytes(plain) == 0
    assert eagle.weights_bytes - plain.weights_bytes == drafter_bytes(eagle)
    assert (plain.kv_groups[0].num_layers, eagle.kv_groups[0].num_layers) == (32, 33)
    assert eagle.kv_groups[0].bytes_per_block == 33 * 16 * 2 * 8 * 128 * 2
    assert eagle.num_gpu_blocks < plain.num_gpu_blocks


def test_a_drafter_of_other_measures_adds_its_own_pages() -> None:
    """Qwen2.5-7B keeps four heads of 128 in 28 layers, Qwen3-0.6B eight; the latter is loaded whole, its head being its embedding."""
    found = planned(SpeculativeConfig("draft_model", "Qwen3-0.6B", 3), "Qwen2.5-7B")
    (group,) = found.kv_groups
    assert group.drafter_bytes == 28 * 16 * 2 * 8 * 128 * 2
    assert group.bytes_per_block == 28 * 16 * 2 * 4 * 128 * 2 + group.drafter_bytes
    assert drafter_bytes(found) == pytest.approx(2 * load_model("Qwen3-0.6B").num_parameters, rel=0.01)


def test_prediction_layers_are_the_models_last_once_more() -> None:
    """DeepSeek-V3's one layer of latent attention: 61 and one."""
    found = planned(SpeculativeConfig("mtp"), "DeepSeek-V3", tp=8)
    assert found.kv_groups[0].num_layers == 62
    assert drafter_bytes(found) > 0


def test_text_takes_nothing() -> None:
    """Drafts that are looked up."""
    assert drafter_bytes(planned(SpeculativeConfig("ngram", None, 3))) == 0


def test_what_keeps_another_cache_beside_windows_is_refused() -> None:
    """A model without any full attention has no blocks to which whole contexts could be added."""
    with pytest.raises(ConfigError, match="planned for full attention only; use another drafter"):
        planned(SpeculativeConfig("draft_model", "Qwen3.5-27B", 3))


@pytest.mark.parametrize(("name", "is_tied"), [("Llama-3.1-8B", False), ("Qwen3-0.6B", True)])
def test_over_stages_the_last_one_has_drafter_and_embedding(name: str, is_tied: bool) -> None:
    """A drafter shares the model's embedding, which the last stage has where the head is tied to it; else it is loaded there once more."""
    config = SpeculativeConfig("eagle3", "M", 3)
    both = [
        deploy(name, "h100-sxm", EngineConfig(pipeline_parallel_size=size, speculative_config=config))
        for size in (1, 2)
    ]
    model = both[0].model
    alone, *_, last = [
        {part.name: part.num_bytes for part in weight_parts(model, found.gpu, found.engine, stage, found.drafter)}
        for found in both
        for stage in pipeline_stages(model.num_layers, found.engine.pipeline_parallel_size)
        if found is both[0] or stage.is_last
    ]
    assert last["drafter"] - alone["drafter"] == (0 if is_tied else 2 * model.vocab_size * model.hidden_size)
