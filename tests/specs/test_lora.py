"""What an adapter adds to a model, counted by hand."""

import pytest

from sim.errors import ConfigError
from sim.specs.engine import EngineConfig
from sim.specs.lora import AdapterLayout, AdapterPair
from sim.specs.model import Experts, Linear

QKV = Linear("qkv_proj", 4096, 6144, "column", kv_features=2048, num_kv_heads=8)
OUT = Linear("o_proj", 4096, 4096, "row")
GATE_UP = Linear("gate_up_proj", 4096, 28672, "column")


def layout(**arguments: object) -> AdapterLayout:
    return AdapterLayout.of(EngineConfig(enable_lora=True, **arguments))  # type: ignore[arg-type]


def test_fused_matrices_have_a_slice_each() -> None:
    """Llama-3.1-8B's qkv_proj takes three A of 4,096 x 16 and one B row of 16 for each of its 6,144 outputs."""
    pair = layout().pair(QKV)
    assert (pair.a_numbers, pair.b_numbers) == (3 * 4096 * 16, 6144 * 16)
    assert layout(max_lora_rank=64).pair(GATE_UP).a_numbers == 2 * 4096 * 64


@pytest.mark.parametrize(
    ("fully", "qkv", "out"),
    [
        (False, (3 * 16 * 4096, 16 * 1536), (16 * 1024, 16 * 4096)),
        (True, (3 * 4 * 4096, 16 * 1536), (16 * 1024, 16 * 1024)),
    ],
)
def test_four_gpus_share_an_adapter(*, fully: bool, qkv: tuple[int, int], out: tuple[int, int]) -> None:
    """A column-parallel matrix cuts B, a row-parallel one A; fully sharded, the other side is cut as well."""
    shared = layout(tensor_parallel_size=4, fully_sharded_loras=fully)
    for linear, numbers in ((QKV, qkv), (OUT, out)):
        pair = shared.pair(linear)
        assert (pair.a_numbers, pair.b_numbers) == numbers


def test_every_expert_has_its_pairs() -> None:
    """Gate and up, then down; whole experts on each GPU are fewer."""
    experts = Experts(128, 8, 2048, 768)
    up, down = layout(tensor_parallel_size=2)._expert_pairs(experts)
    assert up == AdapterPair(2048, 768, 16, 16, 2, 128, 8, is_of_experts=True)
    assert down == AdapterPair(384, 2048, 16, 16, 1, 128, 8, is_of_experts=True)
    up, down = layout(tensor_parallel_size=2, enable_expert_parallel=True)._expert_pairs(experts)
    assert up == AdapterPair(2048, 1536, 16, 16, 2, 64, 4, is_of_experts=True)
    assert down.num_parameters == 64 * 16 * (768 + 2048)


def test_data_parallel_ranks_share_what_lies_beside_experts() -> None:
    """Four GPUs of two engines have a quarter of each expert's pair, and half of attention's."""
    shared = layout(tensor_parallel_size=2, data_parallel_size=2)
    up, down = shared._expert_pairs(Experts(128, 8, 2048, 768))
    assert up == AdapterPair(2048, 2 * 192, 16, 16, 2, 128, 8, is_of_experts=True)
    assert down == AdapterPair(192, 2048, 16, 16, 1, 128, 8, is_of_experts=True)
    assert shared.pair(OUT) == AdapterPair(2048, 4096, 16, 16)
    whole, _ = layout(data_parallel_size=4, enable_expert_parallel=True)._expert_pairs(Experts(128, 8, 2048, 768))
    assert (whole.num_experts, whole.num_used) == (32, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_lora_rank": 24}, "max_lora_rank must be one of 1, 8, 16, 32, 64, 128, 256, 320, 512, got 24"),
        ({"max_loras": 4, "max_cpu_loras": 2}, "max_cpu_loras must be at least max_loras, 4, got 2"),
        ({"max_loras": 0}, "max_loras must be an integer of at least 1"),
    ],
)
def test_what_vllm_refuses_is_refused(arguments: dict[str, int], message: str) -> None:
    """With vLLM's own limits."""
    with pytest.raises(ConfigError, match=message):
        EngineConfig(enable_lora=True, **arguments)  # type: ignore[arg-type]
