"""Prefill attention's work and time, with numbers worked by hand for the H100's parameters, and the laws it obeys."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.specs.hardware import HardwareProfile
from sim.specs.model import Attention
from sim.steptime.prefill import (
    PrefillWork,
    mean_keys_seen,
    prefill_attention,
    prefill_attention_s,
    prefill_fit,
    prefill_speed,
    prefill_work,
    riding_work,
    together,
)
from tests.steptime.makers import FITS, FULL, PREFILL_FIT, faster, h100

US = 1e-6
MLA = Attention("mla", 128, 1, 192, 128, kv_lora_rank=512, qk_rope_head_dim=64)
WINDOWED = replace(FULL, kind="sliding", window=512)
LINEAR = Attention("linear", 32, 16, 128, 128, state_bytes=1_000_000)
CHUNK = st.tuples(st.integers(1, 8192), st.integers(0, 50_000))


def work_of(attention: Attention, *chunks: tuple[int, int], kv_bytes: float = 2.0) -> PrefillWork:
    return prefill_work(prefill_attention(attention, kv_bytes, PREFILL_FIT), chunks)


def prefill_s(*chunks: tuple[int, int], attention: Attention = FULL, gpu: HardwareProfile | None = None) -> float:
    return prefill_attention_s(work_of(attention, *chunks), prefill_speed(PREFILL_FIT, gpu or h100()))


def test_prefill_attention_by_hand() -> None:
    """1,000 new tokens behind 2,000: 8 tiles of 128 queries for each of 32 heads, each query seeing 2,564 keys."""
    flops = 4 * 32 * 128 * 1024 * (2000 + 500 + 64)
    moved = 2 * 128 * (2 * 32 * 1000 + 2 * 8 * 3000)
    work = work_of(FULL, (1000, 2000))
    assert work == (flops, 256, moved)
    compute_us = flops / (989.4e12 * 0.622) / US * (1 + 0.822 * 132 / 256)
    memory_us = moved / (3.35e12 * 0.328) / US
    assert prefill_s((1000, 2000)) == pytest.approx((compute_us**2 + memory_us**2) ** 0.5 * US)


def test_windowed_prefill_reads_its_window() -> None:
    """1,000 tokens behind 9,000 within a window of 512: each query sees 512, together they read 1,512 keys."""
    flops, _, moved_bytes = work_of(WINDOWED, (1000, 9000))
    assert flops == 4 * 32 * 128 * 1024 * (512 + 64)
    assert moved_bytes == 2 * 128 * (2 * 32 * 1000 + 2 * 8 * 1512)


def test_mla_prefill_has_keys_and_values_for_each_head() -> None:
    """128 heads of 192 and 128 numbers, unpacked from the latent."""
    _, _, moved_bytes = work_of(MLA, (100, 0))
    assert moved_bytes == (192 + 128) * 2 * (128 * 100 + 128 * 100)


def test_a_linear_layer_moves_its_state_once_a_tile() -> None:
    """300 tokens in 3 tiles: 4 FLOPs a number of the state and token, whatever was computed before."""
    work = work_of(LINEAR, (300, 0))
    assert work == (4 * 300 * 32 * 128 * 128, 32 * 3, 2 * 3 * 1_000_000 + 2 * 300 * 32 * 256 * 2)
    assert work == work_of(LINEAR, (300, 50_000))


def test_sparse_attention_sees_its_top_tokens_and_reads_all() -> None:
    """With an index of 2,048, a chunk behind 10,000 tokens computes like one behind 2,048, and reads 10,100 keys."""
    flops, _, moved_bytes = work_of(replace(MLA, index_topk=2048), (100, 10_000))
    assert flops == 2 * 128 * (192 + 128) * 128 * (2048 + 64)
    assert moved_bytes == work_of(MLA, (100, 10_000))[2]


def test_an_fp8_cache_halves_the_keys_only() -> None:
    """1,000 tokens behind 2,000: 3,000 keys at one byte a number, queries and outputs at two."""
    _, _, moved_bytes = work_of(FULL, (1000, 2000), kv_bytes=1.0)
    assert moved_bytes == 2 * 128 * (2 * 32 * 1000 + 8 * 3000)


def test_a_softmax_takes_as_long_whatever_the_heads_size() -> None:
    """As 192 more numbers beside the 256 of heads of 128, at a right angle: 320 in all. MLA has 320, and 373 with it; a linear layer has none."""
    fit = replace(PREFILL_FIT, softmax_dims=192.0)
    asked = {layer: prefill_work(prefill_attention(layer, 2.0, fit), ((1000, 2000),)) for layer in (FULL, MLA, LINEAR)}
    assert asked[FULL][0] == 2 * 32 * 320 * 1024 * (2000 + 500 + 64)
    assert asked[MLA][0] / asked[FULL][0] == pytest.approx(128 / 32 * (320**2 + 192**2) ** 0.5 / 320)
    assert fit.efficiency_of_common_heads == pytest.approx(0.622 * 256 / 320)
    assert asked[LINEAR][0] / work_of(LINEAR, (1000, 2000))[0] == pytest.approx(
        320 / 256
    )  # at the rate of common heads


def test_tiles_of_small_heads_have_192_queries() -> None:
    """1,000 tokens in 6 tiles of 192 where heads of 128 have 8 of 128; their diagonal is wider."""
    small = replace(FULL, head_dim=64, v_head_dim=64)
    assert work_of(small, (1000, 2000))[:2] == (4 * 32 * 64 * 6 * 192 * (2000 + 500 + 96), 32 * 6)


def test_a_cache_of_fp8_has_a_kernel_of_its_own() -> None:
    """But MLA unpacks what it reads, and a linear layer reads no cache."""
    fp8 = replace(PREFILL_FIT, compute_efficiency=0.3)
    gpu = replace(h100(), operators=replace(FITS, prefill_attention_fp8=fp8))
    assert [prefill_fit(layer, 1.0, gpu) for layer in (FULL, WINDOWED)] == [fp8, fp8]
    assert {prefill_fit(layer, kv_bytes, gpu) for layer, kv_bytes in ((FULL, 2.0), (MLA, 1.0), (LINEAR, 1.0))} == {
        PREFILL_FIT
    }


def test_riding_decodes_fill_tiles_of_their_own() -> None:
    """10 decodes with 5,000 tokens in all, each as dear as 40 query rows."""
    fit = replace(PREFILL_FIT, decode_rows=40.0)
    riding = riding_work(10, 5000, FULL, 2.0, fit)
    assert riding == (4 * 32 * 128 * 40 * 5000, 10 * 32, 2 * 8 * 256 * 5000)
    assert riding_work(10, 5000, WINDOWED, 2.0, fit) == riding
    assert riding_work(10, 50_000, WINDOWED, 2.0, fit) == riding_work(10, 5120, FULL, 2.0, fit)
    assert riding_work(10, 5000, LINEAR, 2.0, fit) == (0, 0, 10 * 2 * 1_000_000)


@pytest.mark.parametrize(
    ("chunk", "computed", "window", "expected"),
    [(100, 0, None, 50), (100, 0, 100, 50), (100, 500, 100, 100), (100, 0, 50, (50 * 25 + 50 * 50) / 100)],
)
def test_mean_keys_seen(chunk: int, computed: int, window: int | None, expected: float) -> None:
    """Half the chunk and all before it, or at most the window for each query."""
    assert mean_keys_seen(chunk, computed, window) == pytest.approx(expected)


@given(first=CHUNK, second=CHUNK, attention=st.sampled_from([FULL, WINDOWED, MLA, LINEAR]))
def test_the_work_of_chunks_adds_up(first: tuple[int, int], second: tuple[int, int], attention: Attention) -> None:
    """Two chunks of a step ask for what each of them asks for."""
    both = together(work_of(attention, first), work_of(attention, second))
    assert work_of(attention, first, second) == pytest.approx(both, rel=1e-12)


@given(chunk=CHUNK, more=st.integers(1, 10_000), factor=st.floats(1.01, 4))
def test_more_context_takes_longer_and_more_bandwidth_less(chunk: tuple[int, int], more: int, factor: float) -> None:
    """A chunk's time grows with what was computed before it, and falls with faster memory."""
    tokens, computed = chunk
    assert prefill_s((tokens, computed + more)) > prefill_s(chunk) > prefill_s(chunk, gpu=faster(h100(), factor))


@given(chunk=st.integers(1, 8192), computed=st.integers(0, 50_000), window=st.integers(1, 8192))
def test_a_window_never_shows_more(chunk: int, computed: int, window: int) -> None:
    """Keys seen are at most the window's, at most those there are, and grow with the window."""
    seen = mean_keys_seen(chunk, computed, window)
    assert seen <= min(window, computed + chunk / 2) + 1e-9
    assert seen <= mean_keys_seen(chunk, computed, window + 1) + 1e-9
