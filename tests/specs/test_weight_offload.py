"""Which weights leave the GPU, counted by hand."""

import pytest

from sim.deployment import deploy
from sim.errors import ConfigError
from sim.specs.engine import EngineConfig
from sim.specs.model import Experts
from sim.specs.weight_offload import host_weights
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
        ({"offload_prefetch_step": 0}, "offload_prefetch_step must be an integer of at least 1"),
    ],
)
def test_what_vllm_refuses_is_refused(arguments: dict[str, int], message: str) -> None:
    """With its rule."""
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**arguments)  # type: ignore[arg-type]
