"""Layer-wise offload against the worked example it comes from, and the laws that hold for any shape."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import ConfigError
from sim.memory.layerwise_offload import (
    ALL_SAVINGS,
    LayerwisePlan,
    LayerwiseSettings,
    LayerwiseWidths,
    Savings,
    layerwise_plan,
    layerwise_widths,
    saved,
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
    assert (EXAMPLE.kv_dim, EXAMPLE.qkv_size, LONG.pinned_blocks) == (1024, 4608, 128)
    assert part(plan, "ring buffer") == 2_147_483_648 == 2048 * MIB
    assert part(plan, "decode buffer") == 150_994_944 == 144 * MIB
    assert part(plan, "pinned KV cache") == 19_327_352_832 == 18_432 * MIB
    assert part(plan, "gate_up") == 7_180_648_448 == 6848 * MIB
    assert part(plan, "k_full") == part(plan, "v_full") == 268_435_456 == 256 * MIB
    assert plan.preallocated_bytes == (2048 + 144) * MIB
    assert plan.decode_peak_bytes == 512 * MIB + 8


def test_its_summary_table() -> None:
    """About 2.2 GB on the GPU and 18.4 pinned, 10 to 12 GB at prefill's peak where gate_up dominates, 512 MB at decode's."""
    plan = layerwise_plan(EXAMPLE, LONG, 8 * GIB)
    assert plan.preallocated_bytes / MIB / 1000 == pytest.approx(2.2, abs=0.05)
    assert plan.cpu_bytes / MIB / 1000 == pytest.approx(18.4, abs=0.05)
    assert 10e9 < plan.prefill_peak_bytes < 12e9
    assert part(plan, "gate_up") > plan.prefill_peak_bytes / 2
    assert plan.rotary_table.num_bytes == 131072 * 128 * 4
    assert (
        plan.gpu_bytes
        == plan.prefill_bytes
        == 8 * GIB + 64 * MIB + 2192 * MIB + 2 * MIB + 2 * 640 * MIB + plan.prefill_peak_bytes
    )


def test_the_real_qwen3_4b_has_other_widths() -> None:
    """Its config has 32 heads and 9,728 wide feed-forwards, so the rotary temporaries of attention are the peak."""
    model = load_model("Qwen/Qwen3-4B-Instruct-2507")
    widths = layerwise_widths(model)
    assert widths == replace(EXAMPLE, num_heads=32, intermediate_size=9728, max_position=262_144, has_qk_norms=True)
    assert not layerwise_widths(load_model("Llama-3.1-8B")).has_qk_norms
    plan = layerwise_plan(widths, LONG, model.weight_bytes())
    assert part(plan, "rotary temporaries") == 131072 * 40 * 128 * 4 * 3
    assert plan.cpu_bytes == 18_432 * MIB


@pytest.mark.parametrize("name", ["Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V2-Lite", "openai/gpt-oss-20b"])
def test_what_is_no_plain_stack_is_refused(name: str) -> None:
    """Experts, latent vectors and windows have no layer-wise plan."""
    with pytest.raises(ConfigError, match="leave --offload out"):
        layerwise_widths(load_model(name))


def test_what_the_documents_four_savings_save() -> None:
    """Joined K and V allocated once: no peak falls, prefill's rises by their 512 MB, but 36 layers allocate nothing anew.

    Lengths are 8 bytes a layer. In its example gate_up is the peak, so that rotation in place saves nothing before the
    feed-forward is cut; together they leave the norm's or a head norm's fp32 copy as the peak.
    """
    found = saved(EXAMPLE, LONG)
    assert found["kv_joined"] == (-512 * MIB, 0, 36 * 512 * MIB)
    assert found["lengths_kept"] == (-8, 0, 36 * 8)
    assert found["rope_in_place"] == (0, 0, 0)
    rotary = 131072 * 28 * 128 * 4 * 3
    attention = (131072 * 2560 + 131072 * 4608) * 2 + rotary
    feed_forward = (131072 * 2560 + 131072 * 3 * 13696) * 2
    assert found["mlp_chunk_tokens"].prefill_bytes == feed_forward - attention
    norm = 131072 * 2560 * 2 + 131072 * 2561 * 4
    assert found["all"].prefill_bytes == feed_forward - norm - 512 * MIB - 8
    cut = replace(LONG, savings=replace(ALL_SAVINGS, kv_joined=False, lengths_kept=False))
    with_head_norms = layerwise_plan(replace(EXAMPLE, has_qk_norms=True), cut, 0)
    assert part(with_head_norms, "query norm in fp32") == 131072 * 20 * 129 * 4
    assert saved(EXAMPLE, replace(LONG, savings=ALL_SAVINGS)) == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", ALL_SAVINGS),
        ("rope-in-place,kv_joined", Savings(kv_joined=True, rope_in_place=True)),
        ("mlp_chunk_tokens=4096", Savings(mlp_chunk_tokens=4096)),
        ("mlp_chunk_tokens", Savings(mlp_chunk_tokens=8192)),
    ],
)
def test_savings_are_named(text: str, expected: Savings) -> None:
    """With commas in between, the feed-forward's with a number."""
    assert Savings.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rope_inplace", "are kv_joined, .* got 'rope_inplace'. Did you mean rope_in_place"),
        ("kv_joined=2", "for mlp_chunk_tokens alone, got 'kv_joined=2'"),
        ("mlp_chunk_tokens=0", "a number of at least 1"),
        ("", "got ''"),
    ],
)
def test_savings_that_do_not_exist_are_refused(text: str, said: str) -> None:
    """With those that do."""
    with pytest.raises(ConfigError, match=said):
        Savings.parse(text)


def test_pinned_blocks_hold_the_request() -> None:
    """More may be pinned, fewer not."""
    more = layerwise_plan(EXAMPLE, replace(LONG, num_cpu_blocks=256), 0)
    assert more.cpu_bytes == 2 * 18_432 * MIB
    with pytest.raises(ConfigError, match="131,072 tokens take 128 blocks of 1,024, got 127"):
        replace(LONG, num_cpu_blocks=127)


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
