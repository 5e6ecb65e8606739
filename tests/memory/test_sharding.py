"""Which layers, experts and ends each GPU holds under pipeline and expert parallelism."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import ConfigError
from sim.memory.kv_cache import kv_cache_layout
from sim.memory.loading import text_only
from sim.memory.plan import MemoryPlan, plan_memory
from sim.memory.weights import weight_parts
from sim.specs.drafters import with_prediction_layers
from sim.specs.engine import EngineConfig
from sim.specs.hardware import load_gpu
from sim.specs.model import ModelSpec
from sim.specs.models import load_model
from sim.specs.stages import pipeline_stages
from sim.units import GIB
from tests.memory.shapes import Shape, make_engine, make_model

LLAMA_8B = Shape(4096, 14336, 32, 32, 8, 128, 128256, 131072)
MIXTRAL = replace(LLAMA_8B, vocab=32000, num_experts=8, experts_per_token=2)


def planned(model: ModelSpec, config: EngineConfig, *, gpu: str = "h100-sxm", version: str = "0.19.0") -> MemoryPlan:
    return plan_memory(model, load_gpu(gpu), make_engine(model, config, gpu=gpu, vllm_version=version))


def weights(model: ModelSpec, config: EngineConfig) -> list[dict[str, int]]:
    """Bytes by part for each stage."""
    engine = make_engine(model, config)
    stages = pipeline_stages(model.num_layers, engine.pipeline_parallel_size)
    return [
        {part.name: part.num_bytes for part in weight_parts(model, load_gpu("h100-sxm"), engine, stage)}
        for stage in stages
    ]


@pytest.mark.parametrize(
    ("num_layers", "size", "counts"),
    [(32, 1, [32]), (32, 4, [8, 8, 8, 8]), (61, 2, [31, 30]), (30, 4, [7, 8, 8, 7]), (7, 4, [2, 2, 2, 1])],
)
def test_layers_are_shared_out_as_vllm_does(num_layers: int, size: int, counts: list[int]) -> None:
    """What does not divide goes to the middle stages first and never to the last, which has the head."""
    stages = pipeline_stages(num_layers, size)
    assert [stage.stop - stage.start for stage in stages] == counts


def test_a_layer_split_of_ones_own() -> None:
    """Stages have what is asked for, weights and KV alike; so the one with more layers decides how many blocks there are."""
    assert [stage[2:] for stage in pipeline_stages(32, 3, (20, 5, 7))] == [(0, 20), (20, 25), (25, 32)]
    model = make_model(LLAMA_8B)
    even, uneven, other = (
        planned(model, EngineConfig(pipeline_parallel_size=2, pp_layer_partition=partition, max_model_len=8192))
        for partition in (None, (20, 12), (12, 20))
    )
    layer_bytes = planned(model, EngineConfig(max_model_len=8192)).kv_groups[0].page_bytes
    assert (uneven.stage, other.stage) == ((0, 2, 0, 20), (1, 2, 12, 32))
    assert uneven.kv_cache_bytes == uneven.num_gpu_blocks * 20 * layer_bytes
    assert uneven.num_gpu_blocks < even.num_gpu_blocks
    assert (
        planned(model, EngineConfig(pipeline_parallel_size=2, pp_layer_partition=(16, 16), max_model_len=8192)) == even
    )


@pytest.mark.parametrize(
    ("partition", "refusal"),
    [
        ((20, 11), r"^pp_layer_partition .* must share out the 32 layers .* 2 stages, got 31 layers for 2; correct it"),
        ((16, 8, 8), "got 32 layers for 3"),
        ((32, 0), r"^pp_layer_partition must be the layers of each pipeline stage, at least 1, .* got \(32, 0\)"),
        ("20,12", "got '20,12'"),
    ],
)
def test_a_layer_split_shares_out_all_layers(partition: Any, refusal: str) -> None:
    with pytest.raises(ConfigError, match=refusal):
        planned(make_model(LLAMA_8B), EngineConfig(pipeline_parallel_size=2, pp_layer_partition=partition))


@given(st.integers(1, 200), st.integers(1, 16))
def test_every_layer_is_on_one_stage(num_layers: int, size: int) -> None:
    """Stages follow one another without gaps, and differ by a layer at most."""
    stages = pipeline_stages(num_layers, min(size, num_layers))
    assert [layer for stage in stages for layer in range(stage.start, stage.stop)] == list(range(num_layers))
    assert {stage.stop - stage.start for stage in stages} <= {num_layers // len(stages), num_layers // len(stages) + 1}


def test_the_ends_are_on_the_ends() -> None:
    """The embedding is on the first stage, the head on the last; a tied embedding is on both."""
    model = make_model(LLAMA_8B)
    end = 2 * 128_256 * 4096
    first, middle, last = weights(model, EngineConfig(pipeline_parallel_size=3))
    assert (first["embedding and head"], last["embedding and head"]) == (end, end)
    assert "embedding and head" not in middle
    tied = weights(replace(model, lm_head=None), EngineConfig(pipeline_parallel_size=2))
    assert [stage["embedding and head"] for stage in tied] == [end, end]
    assert weights(replace(model, lm_head=None), EngineConfig())[0]["embedding and head"] == end


@pytest.mark.parametrize("size", [2, 3, 5])
def test_stages_together_hold_the_model_once(size: int) -> None:
    """Over all stages nothing but the table of rotary positions is held more than once."""
    (whole,), stages = (weights(make_model(LLAMA_8B), EngineConfig(pipeline_parallel_size=pp)) for pp in (1, size))
    tables = whole["rotary tables"]
    assert sum(sum(stage.values()) - tables for stage in stages) == sum(whole.values()) - tables


def test_the_stage_with_the_least_room_decides() -> None:
    """Llama-3.1-8B on two stages: the last samples, beside what it was handed, so it has fewer blocks, each with half the layers."""
    model = make_model(LLAMA_8B)
    plan = planned(model, EngineConfig(pipeline_parallel_size=2, max_model_len=8192))
    assert (plan.stage.rank, plan.stage.size) == (1, 2)
    assert plan.weights_bytes / GIB == pytest.approx(7.51, abs=0.01)
    handed_gib = 2 * 8192 * 4096 * 2 / GIB
    assert plan.activation_bytes / GIB == pytest.approx(1.89 + handed_gib, abs=0.02)
    assert plan.kv_cache_bytes == plan.num_gpu_blocks * 2**20
    assert plan.num_gpu_blocks > 2 * planned(model, EngineConfig(max_model_len=8192)).num_gpu_blocks


def test_groups_are_dealt_so_that_stages_share_them() -> None:
    """gemma's pattern on two stages: each group has its layers here, and a request needs as many blocks as on one."""
    model = make_model(replace(LLAMA_8B, layers=24, num_sliding=12, window=1024))
    engine = make_engine(model, EngineConfig(pipeline_parallel_size=2, async_scheduling=False), vllm_version="0.33.0")
    whole = kv_cache_layout(model, engine)
    halves = [kv_cache_layout(model, engine, stage) for stage in pipeline_stages(24, 2)]
    assert [[group.num_layers for group in half.groups] for half in halves] == [[12, 0], [0, 12]]
    assert [half.blocks_per_request(8192) for half in halves] == [whole.blocks_per_request(8192)] * 2
    assert [half.bytes_per_block for half in halves] == [whole.bytes_per_block] * 2


def test_expert_parallel_gpus_hold_whole_experts() -> None:
    """Two GPUs hold four of eight experts each: as many bytes as halves of all eight, but a wider workspace."""
    model = make_model(MIXTRAL)
    sliced, whole = (
        planned(model, EngineConfig(tensor_parallel_size=2, enable_expert_parallel=ep)) for ep in (False, True)
    )
    assert sliced.weights_bytes == whole.weights_bytes
    assert whole.activation_bytes > sliced.activation_bytes
    three = make_model(replace(MIXTRAL, num_experts=3))
    uneven = [
        weights(three, EngineConfig(tensor_parallel_size=2, enable_expert_parallel=ep))[0]["routed experts"]
        for ep in (False, True)
    ]
    assert uneven[1] == uneven[0] * 2 // 1.5


def test_a_vision_tower_can_be_left_out() -> None:
    """--language-model-only frees the tower's weights and what profiling an image takes."""
    model = load_model("meta-llama/Llama-4-Scout-17B-16E-Instruct")
    plans = [
        planned(model, EngineConfig(tensor_parallel_size=8, language_model_only=only, max_model_len=8192))
        for only in (False, True)
    ]
    assert plans[0].weights_bytes - plans[1].weights_bytes == -(-2 * model.num_vision_parameters // 8)
    assert plans[0].activation_bytes > plans[1].activation_bytes
    assert text_only(model).num_parameters == model.num_parameters


def test_prediction_layers_are_loaded_on_demand() -> None:
    """DeepSeek-V3's multi-token prediction: 11.6 billion parameters beside the shared ends, and a layer more of KV cache."""
    model = load_model("deepseek-ai/DeepSeek-V3")
    loaded = with_prediction_layers(model)
    assert (loaded.num_parameters - model.num_parameters) / 1e9 == pytest.approx(11.61, abs=0.01)
    assert (loaded.num_layers, loaded.num_prediction_layers) == (62, 0)
    with pytest.raises(ConfigError, match="no layers for multi-token prediction"):
        with_prediction_layers(make_model(LLAMA_8B))


def test_llama_4_scout_weighs_what_vllm_logged() -> None:
    """Model loading took 103.7674 GiB on two GPUs in bf16 (vLLM issue 16177); ours are within 0.1 %, 2.5 GiB of them rotary."""
    model = load_model("meta-llama/Llama-4-Scout-17B-16E-Instruct")
    total = sum(weights(model, EngineConfig(tensor_parallel_size=2))[0].values())
    assert total / GIB == pytest.approx(103.7674, rel=0.001)


def test_data_parallel_ranks_share_out_experts_alone() -> None:
    """Of eight experts each of four GPUs holds two, whole or as quarters, and all of the rest; copies take their room."""
    model = make_model(MIXTRAL)

    def parts(**arguments: Any) -> dict[str, int]:
        return weights(model, EngineConfig(data_parallel_size=4, **arguments))[0]

    alone, sliced, whole = weights(model, EngineConfig())[0], parts(), parts(enable_expert_parallel=True)
    copied = parts(enable_expert_parallel=True, enable_eplb=True, num_redundant_experts=4)
    assert sliced["routed experts"] == whole["routed experts"] == alone["routed experts"] // 4
    assert copied["routed experts"] == alone["routed experts"] * 3 // 8
    for name in set(alone) - {"routed experts"}:
        assert sliced[name] == whole[name] == alone[name]


def test_experts_see_the_tokens_of_all_ranks() -> None:
    """Which are gathered before and added up behind them: twice 8,192 tokens of 4,096 numbers a rank."""
    plan = planned(make_model(MIXTRAL), EngineConfig(data_parallel_size=4, max_num_batched_tokens=8192))
    gathered = [line.num_bytes for line in plan.ledger if line.name == "tokens of all ranks"]
    assert gathered == [2 * 4 * 8192 * 4096 * 2]
    dense = make_model(LLAMA_8B)
    plans = [planned(dense, EngineConfig(data_parallel_size=ranks)) for ranks in (1, 4)]
    assert plans[0].num_gpu_blocks == plans[1].num_gpu_blocks


STAGE_ROWS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "golden" / "kv_cache_by_stage.json").read_text(encoding="utf-8")
)
"""What `get_kv_cache_configs` of vLLM 0.32.0 made of the layers of models with windows, stage by stage, run without a GPU."""


def row_name(row: dict[str, Any]) -> str:
    return f"{row['model']}-{'-'.join(map(str, row['stages']))}-{row['max_model_len']}"


@pytest.mark.parametrize("row", STAGE_ROWS, ids=row_name)
def test_groups_and_blocks_of_stages_are_those_of_vllm(row: dict[str, Any]) -> None:
    """The layers of each group on each stage, the blocks of all and their bytes on each; or, where vLLM does not start, the longest request of the first stage without room."""
    model, counts = load_model(row["model"]), row["stages"]
    engine = make_engine(
        model,
        EngineConfig(
            pipeline_parallel_size=len(counts),
            pp_layer_partition=tuple(counts) if row["is_split"] else None,
            max_model_len=row["max_model_len"],
            max_num_batched_tokens=row["max_num_batched_tokens"],
            max_num_seqs=64,
            async_scheduling=False,
        ),
        vllm_version="0.32.0",
    )
    stages = pipeline_stages(model.num_layers, len(counts), engine.pp_layer_partition)
    assert [stage.stop - stage.start for stage in stages] == counts
    layouts = [kv_cache_layout(model, engine, stage) for stage in stages]
    override, most = row.get("num_gpu_blocks_override"), row["max_model_len"]
    rooms = [override or layout.num_blocks(room) for layout, room in zip(layouts, row["available_bytes"], strict=True)]
    longest = [layout.longest_request(room, most) for layout, room in zip(layouts, rooms, strict=True)]
    if "longest" in row:
        assert next(tokens for tokens in longest if tokens < most) == row["longest"]
        return
    num_blocks = min(rooms)
    assert longest == [most] * len(counts)
    assert [[group.num_layers for group in layout.groups] for layout in layouts] == row["groups"]
    assert num_blocks == row["num_blocks"]
    assert [num_blocks * layout.bytes_per_block for layout in layouts] == row["tensor_bytes"]
    assert layouts[0].max_concurrency(num_blocks, most) == row["max_concurrency"]
