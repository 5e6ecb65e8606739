"""Layer-wise offload against the worked example it comes from, and the laws that hold for any shape."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import ConfigError
from sim.memory.layerwise_offload import (
    LayerwisePlan,
    LayerwiseSettings,
    LayerwiseWidths,
    layerwise_plan,
    layerwise_widths,
)
from sim.specs.models import load_model
from sim.units import GIB, MIB

EXAMPLE = LayerwiseWidths(2560, 20, 8, 128, 13696, 36, 131072)  # the document's Qwen3-4B
LONG = LayerwiseSettings(131072)


def part(plan: LayerwisePlan, name: str) -> int:
    parts = (
        *plan.preallocated,
        *plan.cpu,
        *plan.prefill_persistent,
        *plan.prefill_temporaries,
        *plan.decode_temporaries,
    )
    return next(each.num_bytes for each in parts if each.name == name)


def test_qwen3_4b_at_128k_by_the_documents_appendix() -> None:
    """Ring 2,048 MB, decode buffer 144, pinned CPU cache 18,432, gate_up 6,848, k_full and v_full 256 each."""
    plan = layerwise_plan(EXAMPLE, LONG, 8 * GIB)
    assert (EXAMPLE.kv_dim, EXAMPLE.qkv_size, LONG.num_cpu_blocks) == (1024, 4608, 128)
    assert part(plan, "ring buffer") == 2_147_483_648 == 2048 * MIB
    assert part(plan, "decode buffer") == 150_994_944 == 144 * MIB
    assert part(plan, "pinned KV cache") == 19_327_352_832 == 18_432 * MIB
    assert part(plan, "gate_up") == 7_180_648_448 == 6848 * MIB
    assert part(plan, "k_full") == part(plan, "v_full") == 268_435_456 == 256 * MIB
    assert plan.preallocated_bytes == (2048 + 144) * MIB
    assert plan.decode_peak_bytes == 512 * MIB


def test_its_summary_table() -> None:
    """About 2.2 GB on the GPU and 18.4 pinned, 10 to 12 GB at prefill's peak where gate_up dominates, 512 MB at decode's."""
    plan = layerwise_plan(EXAMPLE, LONG, 8 * GIB)
    assert plan.preallocated_bytes / MIB / 1000 == pytest.approx(2.2, abs=0.05)
    assert plan.cpu_bytes / MIB / 1000 == pytest.approx(18.4, abs=0.05)
    assert 10e9 < plan.prefill_peak_bytes < 12e9
    assert part(plan, "gate_up") > plan.prefill_peak_bytes / 2
    assert plan.rotary_table.num_bytes == 131072 * 128 * 4
    assert plan.gpu_bytes == 8 * GIB + 64 * MIB + 2192 * MIB + 2 * MIB + 2 * 640 * MIB + plan.prefill_peak_bytes


def test_the_real_qwen3_4b_has_other_widths() -> None:
    """Its config has 32 heads and 9,728 wide feed-forwards, so the rotary temporaries of attention are the peak."""
    model = load_model("Qwen/Qwen3-4B-Instruct-2507")
    widths = layerwise_widths(model)
    assert widths == replace(EXAMPLE, num_heads=32, intermediate_size=9728, max_position=262_144)
    plan = layerwise_plan(widths, LONG, model.weight_bytes())
    assert part(plan, "rotary temporaries") == 131072 * 40 * 128 * 4 * 3
    assert plan.cpu_bytes == 18_432 * MIB


@pytest.mark.parametrize("name", ["Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V2-Lite", "openai/gpt-oss-20b"])
def test_what_is_no_plain_stack_is_refused(name: str) -> None:
    """Experts, latent vectors and windows have no layer-wise plan."""
    with pytest.raises(ConfigError, match="leave --offload out"):
        layerwise_widths(load_model(name))


@given(st.integers(1, 200_000), st.integers(1, 8))
def test_the_ring_and_the_prompt_decide(seq_len: int, num_kv_buffers: int) -> None:
    """A longer request or a larger ring never needs less; CPU memory holds every layer of every token."""
    settings = LayerwiseSettings(seq_len, num_kv_buffers=num_kv_buffers)
    plan = layerwise_plan(EXAMPLE, settings, 0)
    longer = layerwise_plan(EXAMPLE, replace(settings, seq_len=seq_len + 1), 0)
    larger = layerwise_plan(EXAMPLE, replace(settings, num_kv_buffers=num_kv_buffers + 1), 0)
    assert plan.gpu_bytes < longer.gpu_bytes
    assert plan.gpu_bytes < larger.gpu_bytes
    assert plan.cpu_bytes == larger.cpu_bytes >= 2 * 36 * seq_len * 1024 * 2
