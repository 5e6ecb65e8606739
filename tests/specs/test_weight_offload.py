"""Which weights leave the GPU, counted by hand."""

from typing import Any

import pytest

from sim.deployment import deploy
from sim.errors import ConfigError
from sim.specs.engine import EngineConfig
from sim.specs.model import Experts
from sim.specs.notes import engine_notes
from sim.specs.weight_offload import host_weights
from sim.steptime.protocol import StepShape
from sim.units import GIB
from tests.steptime.makers import make_model

QKV, OUT, UP, DOWN = (2 * 4096 * width for width in (6144, 4096, 28672, 14336))
LAYER = QKV + OUT + UP + DOWN + 2 * 8192


def test_parameters_move_in_order_until_there_are_enough() -> None:
    """1 GiB takes two whole layers of Llama-3.1-8B (416 MiB each), and of the third all up to the one that goes beyond: gate_up."""
    found = host_weights(make_model().layers, EngineConfig(cpu_offload_gb=1))
    assert found is not None
    assert {weight.name: count for weight, count in found.read.items()} == {  # type: ignore[union-attr]
        "qkv_proj": 3, "o_proj": 3, "gate_up_proj": 3, "down_proj": 2,
    }  # fmt: skip
    assert found.num_bytes == 2 * LAYER + QKV + OUT + UP
    assert GIB <= found.num_bytes < GIB + UP


def test_experts_are_two_parameters() -> None:
    """Gate and up first: of three matrices two, when these alone are enough."""
    experts = Experts(8, 2, 4096, 14336)
    found = host_weights(make_model(experts=experts).layers, EngineConfig(cpu_offload_gb=1))
    assert found is not None
    assert found.read[experts] == pytest.approx(2 / 3)


def test_the_last_layers_of_each_group_move() -> None:
    """Groups of 8 with 2 in 32 layers: 6, 7, 14, 15, ...; two buffers of a layer come back."""
    engine = EngineConfig(offload_group_size=8, offload_num_in_group=2, offload_prefetch_step=2, cpu_offload_gb=3)
    found = host_weights(make_model().layers, engine)
    assert found is not None
    assert found.copied == (6, 7, 14, 15, 22, 23, 30, 31)
    assert not found.read
    assert (found.num_bytes, found.buffer_bytes) == (8 * LAYER, 2 * LAYER)


def test_chosen_parameters_move_alone() -> None:
    """Up to the bytes asked for; a name is one whole part of a parameter's, or several."""
    engine = EngineConfig(cpu_offload_gb=1, cpu_offload_params=("down_proj",))
    found = host_weights(make_model().layers, engine)
    assert found is not None
    assert {weight.name: count for weight, count in found.read.items()} == {"down_proj": 10}  # type: ignore[union-attr]
    assert found.num_bytes == 10 * DOWN
    experts = Experts(8, 2, 4096, 14336)
    for chosen in (("experts",), ("w2_weight", "experts.w13_weight"), ("experts", "w2_weight")):
        moved = host_weights(
            make_model(experts=experts).layers, EngineConfig(cpu_offload_gb=10, cpu_offload_params=chosen)
        )
        assert moved is not None
        assert set(moved.read) == {experts}
    down = host_weights(
        make_model(experts=experts).layers, EngineConfig(cpu_offload_gb=1, cpu_offload_params=("w2_weight",))
    )
    assert down is not None
    assert down.read[experts] == pytest.approx(2 / 3)  # of two layers a third each, some 0.94 GiB an expert layer


def test_layers_without_a_chosen_parameter_stay() -> None:
    """Of eight that would move, the four that have experts, of which only these move; buffers are theirs."""
    dense, sparse = make_model().layers[0], make_model(experts=Experts(8, 2, 4096, 14336)).layers[0]
    engine = EngineConfig(offload_group_size=8, offload_num_in_group=2, offload_params=("w2_weight",))
    found = host_weights((dense, sparse) * 16, engine)
    assert found is not None
    assert found.copied == (7, 15, 23, 31)
    down = 8 * 2 * 4096 * 14336
    assert (found.num_bytes, found.layer_bytes, found.buffer_bytes) == (4 * down, down, down)


@pytest.mark.parametrize(
    ("arguments", "how"),
    [
        ({}, None),
        ({"cpu_offload_gb": 1}, "uva"),
        ({"cpu_offload_gb": 1, "offload_group_size": 4}, "prefetch"),
        ({"cpu_offload_gb": 1, "offload_group_size": 4, "offload_backend": "uva"}, "uva"),
        ({"offload_group_size": 4, "offload_backend": "uva"}, None),
        ({"cpu_offload_gb": 1, "offload_group_size": 4, "offload_backend": "prefetch"}, "prefetch"),
    ],
)
def test_of_two_ways_one_is_taken(arguments: dict[str, Any], how: str | None) -> None:
    """Copies, unless told otherwise; what the other would need changes nothing."""
    engine = EngineConfig(**arguments)
    assert engine.weight_offload == how
    found = host_weights(make_model().layers, engine)
    assert (found is None) == (how is None)
    if found is not None:
        assert bool(found.copied) == (how == "prefetch")
    idle = {"uva": "offload_group_size", "prefetch": "cpu_offload_gb", None: "offload_group_size"}[how]
    said = any(note.startswith(f"{idle} changes nothing here") for note in engine_notes(engine, None))
    assert said == (idle in arguments)


def test_what_leaves_the_gpu_is_room_for_kv() -> None:
    """As many bytes as leave, but for less than one block."""
    plain, less = (
        deploy("Llama-3.1-8B", "l4", EngineConfig(max_model_len=4096, cpu_offload_gb=gb)).plan for gb in (0, 4)
    )
    moved = plain.weights_bytes - less.weights_bytes
    assert moved >= 4 * GIB
    assert less.available_kv_cache_bytes - plain.available_kv_cache_bytes == moved


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cpu_offload_gb": -1}, "cpu_offload_gb must be GiB of weights a GPU, at least 0"),
        (
            {"offload_group_size": 2, "offload_num_in_group": 3},
            "offload_num_in_group must be at most offload_group_size, 2, got 3",
        ),
        ({"offload_backend": "prefetch"}, "offload_num_in_group must be at most offload_group_size, 0, got 1"),
        ({"offload_backend": "zero_copy"}, "offload_backend must be one of auto, uva, prefetch"),
        ({"cpu_offload_params": "experts"}, "cpu_offload_params must be names of weights such as experts"),
        ({"offload_prefetch_step": 0}, "offload_prefetch_step must be an integer of at least 1"),
    ],
)
def test_what_vllm_refuses_is_refused(arguments: dict[str, Any], message: str) -> None:
    """With its rule."""
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**arguments)


def test_a_name_that_no_weight_has_is_refused() -> None:
    """Part of a part is none; vLLM would offload nothing. All that there are are said."""
    engine = EngineConfig(cpu_offload_gb=4, cpu_offload_params=("proj",))
    with pytest.raises(
        ConfigError, match=r"of meta-llama/Llama-3.1-8B, got 'proj'; there are qkv_proj, weight, o_proj"
    ):
        deploy("Llama-3.1-8B", "l4", engine)


def test_chosen_weights_are_read_over_the_link_as_far_as_they_are_used() -> None:
    """Experts of a few tokens are, where a dense layer's matrices are whole: as many bytes wait less long."""
    found = {}
    for chosen in ("experts", "qkv_proj"):
        engine = EngineConfig(max_model_len=4096, cpu_offload_gb=1, cpu_offload_params=(chosen,))
        step_time = deploy("Qwen3-30B-A3B", "h100-sxm", engine).step_time
        found[chosen] = step_time.step_s(StepShape(1, 100, (), 1))
    assert found["experts"] < found["qkv_proj"]
