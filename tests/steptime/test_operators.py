"""The operators' forms, with numbers worked by hand for the H100's parameters, and the laws that any of them obeys."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.specs.hardware import load_gpu
from sim.specs.model import BF16, FP32, Attention, Experts, Linear, WeightFormat
from sim.specs.quantization import MXFP4, NF4, NVFP4
from sim.steptime.expert_routing import ExpertRouting
from sim.steptime.operators import (
    compute_dtype,
    decode_attention,
    decode_attention_s,
    elementwise_s,
    gemm_s,
    smooth_max,
)
from tests.steptime.makers import FITS, FULL, experts_s, faster, h100

US = 1e-6
FP8 = WeightFormat("fp8", 8, 0, "fp8")
INT4 = WeightFormat("int4", 4, 0.25, "bf16")
QKV = Linear("qkv_proj", 4096, 6144, "column")
MLA = Attention("mla", 128, 1, 192, 128, kv_lora_rank=512, qk_rope_head_dim=64)
MIXTRAL = Experts(8, 2, 4096, 14336)
WEIGHTS = [WeightFormat(), FP8, INT4]


def decode_s(num_requests: int, context_tokens: float, attention: Attention = FULL, kv_bytes: float = 2.0) -> float:
    work = decode_attention(num_requests, attention, kv_bytes, h100())
    return work.fixed_s + decode_attention_s(work, min(context_tokens, work.most_context_tokens or context_tokens))


def test_32_bits_are_multiplied_without_tensor_cores() -> None:
    """H100's 132 multiprocessors reach 67 TFLOPS, of bf16's 989: a router of many rows takes that much longer."""
    router = Linear("gate", 3072, 256, "replicated", weight=FP32)
    in_16_bits = replace(router, weight=BF16)
    rows = 65536.0
    fit = h100().operators.gemm["bf16"]
    hand_s = 2 * rows * 3072 * 256 / (132 * 5.1e11 * fit.compute_efficiency)
    assert gemm_s(rows, router, h100()) == pytest.approx(hand_s, rel=0.02)
    assert gemm_s(rows, router, h100()) > 5 * gemm_s(rows, in_16_bits, h100())
    assert gemm_s(1.0, router, h100()) < 2 * gemm_s(1.0, in_16_bits, h100())


def test_smooth_max_of_equal_times() -> None:
    """A kernel bound by both takes 2^(1/p) of either; far apart, the larger alone."""
    assert smooth_max(1.0, 1.0, 2) == pytest.approx(2**0.5)
    assert smooth_max(1.0, 1.0, 3) == pytest.approx(2 ** (1 / 3))
    assert smooth_max(1.0, 1e-4, 2) == pytest.approx(1.0)


def test_bitsandbytes_unpacks_the_whole_matrix_before_it_multiplies() -> None:
    """Beyond one row: 4.5 bits are read and 16 written of each weight, and then a 16-bit matrix is multiplied."""
    nf4 = replace(QKV, weight=NF4)
    unpacking_s = elementwise_s(4096 * 6144 * (4.5 / 8 + 2), h100())
    for rows in (2.0, 8192.0):
        assert gemm_s(rows, nf4, h100()) == pytest.approx(gemm_s(rows, QKV, h100()) + unpacking_s)
    assert gemm_s(1.0, nf4, h100()) < 0.5 * gemm_s(1.0, QKV, h100())
    unpacked_s = elementwise_s(8 * MIXTRAL.num_weights_per_expert * (4.5 / 8 + 2), h100())
    found = experts_s(4.0, replace(MIXTRAL, weight=NF4), h100())
    assert found == pytest.approx(experts_s(4.0, MIXTRAL, h100()) + unpacked_s)


@pytest.mark.parametrize(
    ("weight", "gpu", "slower"),
    [(NVFP4, "h100-sxm", 1 / 0.75), (INT4, "h100-sxm", 1.0), (NVFP4, "a100-sxm-80gb", 1.0)],
)
def test_narrow_floats_reach_three_quarters_of_hoppers_peak(weight: WeightFormat, gpu: str, slower: float) -> None:
    """Marlin's instructions are Ampere's; integers have a kernel of Hopper's."""
    profile = load_gpu(gpu)
    many = [gemm_s(65536.0, replace(QKV, weight=form), profile) for form in (weight, WeightFormat())]
    assert many[0] / many[1] == pytest.approx(slower, rel=0.02)


def test_gemm_of_one_row_reads_the_matrix() -> None:
    """50.35 MB at 0.896 of 3.35 TB/s take 16.8 us, and 3.7 us to launch."""
    memory_us = (4096 * 6144 * 2 + 2 * 4096 + 2 * 6144) / (3.35e12 * 0.896) / US
    compute_us = 2 * 4096 * 6144 / (989.4e12 * 0.836) / US
    assert gemm_s(1.0, QKV, h100()) == pytest.approx((3.687 + (memory_us**2 + compute_us**2) ** 0.5) * US)
    assert gemm_s(1.0, QKV, h100()) == pytest.approx(20.47 * US, rel=1e-3)


def test_gemm_of_8192_rows_computes() -> None:
    """0.412 TFLOP at 0.836 of 989.4 TFLOP/s: 498 us, with 73 us of memory time 507 us in all."""
    assert gemm_s(8192.0, QKV, h100()) == pytest.approx(507.4 * US, rel=1e-3)


def test_fp8_gemm_adds_waves_and_quantisation() -> None:
    """x = 1 x 48 tiles (the last not full) on 132 SMs doubles compute time; inputs are quantised at 0.8 of the bandwidth."""
    compute_us = 2 * 128 * 4096 * 6100 / (1978.9e12 * 0.563) / US * (1 + 0.392 / (48 / 132))
    memory_us = (4096 * 6100 + 128 * 4096 + 2 * 128 * 6100) / (3.35e12 * 0.85) / US
    quantise_us = 3 * 128 * 4096 / (0.8 * 3.35e12) / US
    expected = 6.47 + (compute_us**2 + memory_us**2) ** 0.5 + quantise_us
    assert gemm_s(128.0, replace(QKV, out_features=6100, weight=FP8), h100()) == pytest.approx(expected * US)


def test_weight_only_int4_reads_less_and_computes_in_bf16() -> None:
    """4.25 bits a weight: a quarter of the memory time for one row, the bf16 time for many."""
    int4 = replace(QKV, weight=INT4)
    launch_s = h100().operators.gemm["bf16"].launch_s
    read = (gemm_s(1.0, int4, h100()) - launch_s) / (gemm_s(1.0, QKV, h100()) - launch_s)
    assert read == pytest.approx(4.25 / 16, rel=0.01)
    assert gemm_s(8192.0, int4, h100()) == pytest.approx(gemm_s(8192.0, QKV, h100()), rel=0.01)


def test_fp8_weights_on_a_gpu_without_fp8_compute_in_bf16() -> None:
    """An A100 unpacks fp8 weights: it reads half the bytes and multiplies at bf16 speed."""
    a100 = load_gpu("a100")
    assert compute_dtype(FP8, a100) == "bf16"
    assert gemm_s(8192.0, replace(QKV, weight=FP8), a100) == pytest.approx(gemm_s(8192.0, QKV, a100), rel=0.01)


def test_decode_attention_by_hand() -> None:
    """32 requests with 1,000 tokens each, 8 KV heads of 128: 131 MB, and 2 us for each wave of 132."""
    memory_us = (2 * 32_000 * 8 * 128 * 2 + 4 * 32 * 32 * 128) / (3.35e12 * 0.915) / US
    compute_us = 4 * 32 * 32_000 * 128 / (989.4e12 * 0.114) / US
    expected = 11.959 + (memory_us**3 + compute_us**3) ** (1 / 3) + 2.005 * 32 * 8 / 132
    assert decode_s(32, 32_000) == pytest.approx(expected * US)
    assert decode_s(32, 32_000) == pytest.approx(58.8 * US, rel=1e-3)


def test_a_window_bounds_what_decodes_read() -> None:
    """With a window of 1,024, contexts of 4,000 cost what contexts of 1,024 cost."""
    windowed = replace(FULL, kind="sliding", window=1024)
    assert decode_s(10, 40_000, windowed) == decode_s(10, 10_240, windowed) == decode_s(10, 10_240)


def test_mla_reads_one_latent_for_all_heads() -> None:
    """576 numbers a token, whatever the number of heads; computing 128 heads takes longer than reading them."""
    work = decode_attention(1, MLA, 2.0, h100())
    assert work.memory_per_token_s == pytest.approx(576 * 2 / (3.35e12 * 0.915))
    assert work.compute_per_token_s == pytest.approx(2 * 128 * (576 + 512) / (989.4e12 * 0.622))
    assert decode_attention(1, MLA.per_rank(8), 2.0, h100()).memory_per_token_s == work.memory_per_token_s


def test_linear_attention_moves_its_state_whatever_the_context() -> None:
    """A state of 1 MB is read and written by each decode; contexts cost nothing."""
    linear = Attention("linear", 32, 16, 128, 128, state_bytes=1_000_000)
    assert decode_s(8, 8_000, linear) == decode_s(8, 800_000, linear)
    work = decode_attention(8, linear, 2.0, h100())
    assert work.memory_base_s == pytest.approx(8 * 2_000_000 / (3.35e12 * 0.915))


def test_fp8_cache_halves_what_decodes_read() -> None:
    """One byte a number instead of two."""
    one, two = (decode_attention(1, FULL, size, h100()).memory_per_token_s for size in (1.0, 2.0))
    assert two == pytest.approx(2 * one)


def test_experts_by_hand() -> None:
    """One token of Mixtral reads two experts of 352 MB: 233 us beside 47.7 us of launches; two tiles of 8 rows are multiplied, two rows and 8 more for each
    go five times through memory."""
    memory_us = 2 * 3 * 4096 * 14336 * 2 / (3.35e12 * 0.901) / US
    compute_us = 6 * 4096 * 14336 * 2 * 8 / (989.4e12 * 0.45) / US
    moves_us = 5 * (2 + 2 * 8) * 2 * 4096 / 3.35e12 / US
    hand_us = 47.671 + (memory_us**1.6 + compute_us**1.6) ** (1 / 1.6) + moves_us
    assert experts_s(1.0, MIXTRAL, h100()) == pytest.approx(hand_us * US)


@pytest.mark.parametrize(
    ("tokens", "routing", "num_multiplied"),
    [
        (4096.0, "uniform", 8192 + 8 * 32),  # 1,024 rows each: the last tile of 64 is half empty
        (4096.0, "balanced", 8192),  # or full, where rows are even
        (128.0, "balanced", 8 * 48),  # 32 rows each would fill a tile of 32 by more than nine tenths
        (100.0, "balanced", 8 * 32),  # 25 rows each do not
    ],
)
def test_tiles_are_multiplied_whole(tokens: float, routing: ExpertRouting, num_multiplied: int) -> None:
    """8 experts and 2 of them a token; choosing and sorting takes 20 ns a token."""
    fit = replace(FITS.experts["bf16"], token_s=20e-9)
    gpu = replace(h100(), operators=replace(FITS, experts={**FITS.experts, "bf16": fit}))
    rows = 2 * tokens
    memory_us = 8 * 3 * 4096 * 14336 * 2 / (3.35e12 * 0.901) / US
    compute_us = 6 * 4096 * 14336 * num_multiplied / (989.4e12 * 0.45) / US
    moves_us = 5 * (rows + 8 * 8) * 2 * 4096 / 3.35e12 / US + 0.02 * tokens
    hand_us = 47.671 + (memory_us**1.6 + compute_us**1.6) ** (1 / 1.6) + moves_us
    assert experts_s(tokens, MIXTRAL, gpu, routing) == pytest.approx(hand_us * US)


@pytest.mark.parametrize(("tokens", "slower"), [(28.0, 1.0), (29.0, 1.3)])
def test_weights_are_read_slower_in_large_tiles(tokens: float, slower: float) -> None:
    """7 rows an expert leave a tile of 8 a tenth empty, 7.25 do not."""
    fit = replace(FITS.experts["bf16"], large_tile_reads=0.3)
    gpu = replace(h100(), operators=replace(FITS, experts={**FITS.experts, "bf16": fit}))
    read = replace(FITS.experts["bf16"], memory_efficiency=0.901 / slower)
    same = replace(h100(), operators=replace(FITS, experts={**FITS.experts, "bf16": read}))
    assert experts_s(tokens, MIXTRAL, gpu, "balanced") == pytest.approx(experts_s(tokens, MIXTRAL, same, "balanced"))


@pytest.mark.parametrize(
    ("gpu", "weight", "is_marlin"),
    [
        ("h100", INT4, True),
        ("b200", INT4, True),
        ("l40s", MXFP4, True),
        ("h100", MXFP4, False),
        ("b200", MXFP4, False),
        ("h100", BF16, False),
    ],
)
def test_experts_of_4_bits_are_unpacked_by_marlin(gpu: str, weight: WeightFormat, is_marlin: bool) -> None:
    """Integers everywhere; MXFP4 where neither Triton nor FlashInfer has a kernel of its own for it."""
    profile, experts = load_gpu(gpu), replace(MIXTRAL, weight=weight)
    fits = profile.operators
    fit = fits.experts_weight_only if is_marlin else fits.experts["bf16"]
    others = replace(fits, experts_weight_only=fit, experts={**fits.experts, "bf16": fit})
    assert experts_s(4096.0, experts, profile) == experts_s(4096.0, experts, replace(profile, operators=others))


def test_elementwise_by_hand() -> None:
    """67 MB at half the bandwidth, and 2.3 us."""
    assert elementwise_s(67e6, h100()) == pytest.approx(2.3 * US + 67e6 / (0.5 * 3.35e12))


@given(rows=st.integers(1, 16384), more=st.integers(1, 4096))
def test_more_rows_never_take_less(rows: int, more: int) -> None:
    """GEMMs in bf16 and experts grow with rows."""
    assert gemm_s(float(rows + more), QKV, h100()) > gemm_s(float(rows), QKV, h100())
    assert experts_s(float(rows + more), MIXTRAL, h100()) > experts_s(float(rows), MIXTRAL, h100())


@given(requests=st.integers(1, 512), context=st.integers(1, 100_000), more=st.integers(1, 10_000))
def test_longer_contexts_never_take_less(requests: int, context: int, more: int) -> None:
    """Decode attention grows with contexts and with requests."""
    assert decode_s(requests, context + more) > decode_s(requests, context)
    assert decode_s(requests + 1, context) > decode_s(requests, context)


@given(
    rows=st.integers(1, 16384),
    context=st.integers(1, 100_000),
    factor=st.floats(1.01, 4),
    weight=st.sampled_from(WEIGHTS),
)
def test_more_bandwidth_is_never_slower(rows: int, context: int, factor: float, weight: WeightFormat) -> None:
    """Each kernel on the same GPU with faster memory takes less time."""
    slow, fast, linear = h100(), faster(h100(), factor), replace(QKV, weight=weight)
    assert gemm_s(float(rows), linear, fast) < gemm_s(float(rows), linear, slow)
    assert experts_s(float(rows), MIXTRAL, fast) < experts_s(float(rows), MIXTRAL, slow)
    assert decode_attention_s(decode_attention(rows, FULL, 2.0, fast), float(context)) < decode_attention_s(
        decode_attention(rows, FULL, 2.0, slow), float(context)
    )


@given(rows=st.integers(1, 16384), in_features=st.integers(64, 8192), out_features=st.integers(64, 32768))
def test_no_gemm_beats_its_roofline(rows: int, in_features: int, out_features: int) -> None:
    """At least the time of its floating-point operations and of its bytes at the achieved peaks, at most their sum."""
    linear, fit = Linear("x", in_features, out_features, "replicated"), h100().operators.gemm["bf16"]
    compute_s = 2 * rows * in_features * out_features / (989.4e12 * fit.compute_efficiency)
    moved = 2 * (in_features * out_features + rows * (in_features + out_features))
    memory_s = moved / (3.35e12 * fit.memory_efficiency)
    seconds = gemm_s(float(rows), linear, h100()) - fit.launch_s
    assert max(compute_s, memory_s) <= seconds * (1 + 1e-9)
    assert seconds <= (compute_s + memory_s) * (1 + 1e-9)
