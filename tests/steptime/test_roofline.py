"""Whole steps: figures measured on real vLLM, what graphs and the host add, compositions, and agreement of the fast paths."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.specs.hardware import HardwareProfile, load_gpu
from sim.specs.model import Attention, Experts, Linear, ModelSpec
from sim.specs.models import load_model
from sim.steptime.operators import gemm_s
from sim.steptime.options import Composition, StepTimeOptions
from sim.steptime.prefill import (
    prefill_attention,
    prefill_attention_s,
    prefill_speed,
    prefill_work,
    riding_work,
    together,
)
from sim.steptime.protocol import StepShape
from sim.steptime.roofline import RooflineStepTime
from sim.units import US
from tests.steptime.makers import DEVICES, FITS, FULL, faster, h100, make_engine, make_model, on_cpu

COMPOSITIONS: tuple[Composition, ...] = ("additive", "two_pass", "max")


def steps(
    model: ModelSpec | None = None,
    gpu: HardwareProfile | None = None,
    composition: Composition = "additive",
    **arguments: Any,
) -> RooflineStepTime:
    model, gpu = model or make_model(), gpu or h100()
    return RooflineStepTime(model, gpu, make_engine(model, gpu, **arguments), StepTimeOptions(composition))


def decode(num_decodes: int, context: int) -> StepShape:
    """So many decodes with the same context."""
    return StepShape(num_decodes, num_decodes * context, (), num_decodes)


def prefill(*chunks: tuple[int, int]) -> StepShape:
    return StepShape(0, 0, chunks, len(chunks))


def mixed(num_decodes: int, context: int, *chunks: tuple[int, int]) -> StepShape:
    return StepShape(num_decodes, num_decodes * context, chunks, num_decodes + len(chunks))


def attention_s(model: RooflineStepTime, shape: StepShape) -> float:
    return sum(time.prefill_s + time.decode_s for time in model.explain(shape) if time.operator == "attention")


def test_a_lone_request_of_llama_8b_on_h100() -> None:
    """Measured: 6.2 to 7.5 ms a token."""
    assert 6.2e-3 < steps(load_model("meta-llama/Llama-3.1-8B")).step_s(decode(1, 1000)) < 7.5e-3


def test_45_decodes_of_llama_8b_on_h100() -> None:
    """20 requests/s of 550-token prompts and 248 outputs were measured at 9.1 ms, prompts' cached tails included."""
    assert 7.7e-3 < steps(load_model("meta-llama/Llama-3.1-8B")).step_s(decode(45, 675)) < 9.6e-3


def test_llama_70b_on_four_h100() -> None:
    """Measured: 16.8 ms with 10 decodes, 18.5 ms with 28."""
    model = steps(load_model("meta-llama/Llama-3.3-70B-Instruct"), tensor_parallel_size=4)
    assert model.step_s(decode(10, 700)) == pytest.approx(16.8e-3, rel=0.12)
    assert model.step_s(decode(28, 700)) == pytest.approx(18.5e-3, rel=0.12)


def test_mixtral_on_two_h100() -> None:
    """Measured: 18.1 ms with 22 decodes, 20.5 ms with 102; reading all experts by 22 tokens, not two of them."""
    model = steps(load_model("mistralai/Mixtral-8x7B-v0.1"), tensor_parallel_size=2)
    assert model.step_s(decode(22, 690)) == pytest.approx(18.1e-3, rel=0.1)
    assert model.step_s(decode(102, 690)) == pytest.approx(20.5e-3, rel=0.1)


@pytest.mark.parametrize("name", ["l4", "a10", "mi300x", "rtx-5090", "gb300"])
def test_gpus_that_were_never_measured_have_step_times(name: str) -> None:
    """A lone token takes at least the time to read 15 GB of weights, and at most twice that and launches."""
    gpu = load_gpu(name)
    floor_s = 15.0e9 / gpu.memory_bandwidth_bytes_per_s
    assert floor_s < steps(gpu=gpu).step_s(decode(1, 500)) < 2 * floor_s + 2e-3


def test_padding_to_a_captured_size_is_almost_free() -> None:
    """257 decodes run as 272: at most 1.5 % more than exactly 257 rows; 33 as 40 less than 0.7 %."""
    padded = steps()
    for num_decodes, most in ((257, 0.015), (33, 0.007)):
        exact = steps(cudagraph_capture_sizes=(num_decodes,))
        ratio = padded.step_s(decode(num_decodes, 1000)) / exact.step_s(decode(num_decodes, 1000))
        assert 1 < ratio < 1 + most


def test_without_graphs_a_small_step_waits_for_its_launches() -> None:
    """70B at TP8 on H100: 28 to 30 ms a token without CUDA graphs whatever TP, half of that or less with them."""
    model = load_model("meta-llama/Llama-2-70b-hf")
    eager, graphs = (steps(model, tensor_parallel_size=8, enforce_eager=flag) for flag in (True, False))
    assert 28e-3 < eager.step_s(decode(1, 700)) < 30e-3
    assert graphs.step_s(decode(1, 700)) < 14e-3


def narrow() -> ModelSpec:
    """A model of 100 layers that keep a GPU busy for less than the host takes to launch them."""
    small = tuple(Linear(name, 64, 128, "replicated") for name in ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"))
    model = make_model(attention=Attention("full", 1, 1, 32, 32), num_layers=100, hidden_size=64)
    return replace(model, layers=tuple(replace(layer, linears=small) for layer in model.layers))


@pytest.mark.parametrize(("shape", "layer_us"), [(mixed(1, 100, (4, 0)), 90.0), (mixed(1, 100, (600, 0)), 10 * 29.2)])
def test_a_narrow_deep_model_is_bound_by_its_host(shape: StepShape, layer_us: float) -> None:
    """By 90 us a layer between piecewise graphs, by 10 launches without a graph."""
    expected_s = 100 * layer_us * US + h100().operators.host.exposed_s
    assert steps(narrow()).step_s(shape) == pytest.approx(expected_s)


def test_in_a_full_graph_nothing_waits_for_the_host() -> None:
    assert steps(narrow()).step_s(decode(1, 100)) < 100 * 90 * US


def test_a_gpu_waits_between_piecewise_graphs() -> None:
    """The same 16 decodes take 5 us a layer longer than in a full graph, though the host is far ahead of a model of 70B."""
    model = load_model("meta-llama/Llama-2-70b-hf")
    full, pieces = (
        steps(model, tensor_parallel_size=4, cudagraph_mode=mode) for mode in ("FULL_AND_PIECEWISE", "PIECEWISE")
    )
    shape = decode(16, 1000)
    assert pieces.step_s(shape) - full.step_s(shape) == pytest.approx(80 * 5 * US)
    assert pieces.parts(shape).host_s - full.parts(shape).host_s == pytest.approx(80 * 5 * US)


@pytest.mark.parametrize("shape", [decode(256, 1000), mixed(1, 100, (600, 0)), prefill((512, 0))])
def test_a_cpu_launches_and_computes_by_turns(shape: StepShape) -> None:
    """Eagerly 10 launches a layer add to its kernels, compiled 3; a GPU that is busy for longer hides them."""
    eager, compiled = (steps(gpu=on_cpu(), enforce_eager=flag).step_s(shape) for flag in (True, False))
    on_gpu = steps(enforce_eager=True, async_scheduling=False).step_s(shape)
    assert eager - compiled == pytest.approx(32 * (10 - 3) * 29.2e-6)
    assert eager - on_gpu == pytest.approx(32 * 10 * 29.2e-6)


def test_above_the_largest_size_only_launches_count() -> None:
    """513 decodes have no graph, but keep the GPU busy for longer than launching takes; 512 have piecewise ones, between which it waits."""
    without, pieces = steps().step_s(decode(513, 1000)), steps().step_s(decode(512, 1000)) - 32 * 5 * US
    assert 1 < without / pieces < 1.01


def test_async_scheduling_hides_the_host() -> None:
    """A step of one request costs 0.304 ms of host work; async scheduling leaves a part of it."""
    sync, hidden = (steps(async_scheduling=flag) for flag in (False, True))
    difference_s = sync.step_s(decode(1, 1000)) - hidden.step_s(decode(1, 1000))
    assert difference_s == pytest.approx(0.3e-3 + 4e-6 - h100().operators.host.exposed_s)


def test_a_step_is_never_shorter_than_its_host_work() -> None:
    """A model of one layer on a fast GPU: 256 requests need 0.3 ms and 256 x 4 us of the host."""
    model = steps(make_model(num_layers=1), async_scheduling=True)
    assert model.step_s(decode(256, 16)) == pytest.approx(0.3e-3 + 256 * 4e-6)
    assert model.step_s(mixed(250, 16, (2, 0))) == pytest.approx(0.3e-3 + 251 * 4e-6)


def test_only_sampled_rows_are_turned_into_logits() -> None:
    """A chunk that is not its prompt's last needs no output head: 1.05 GB less to read."""
    model = steps()
    unsampled, sampled = (model.step_s(StepShape(0, 0, ((2048, 0),), count)) for count in (0, 1))
    assert sampled - unsampled == pytest.approx(128256 * 4096 * 2 / (3.35e12 * 0.896), rel=0.1)


def test_windows_bound_attention() -> None:
    """With windows in every layer, a context of 32,000 costs no more than one of 4,096."""
    windowed = steps(make_model(attention=replace(FULL, kind="sliding", window=4096)))
    assert windowed.step_s(decode(8, 32_000)) == windowed.step_s(decode(8, 4096))
    assert windowed.step_s(decode(8, 4096)) == steps().step_s(decode(8, 4096))
    assert windowed.step_s(prefill((512, 30_000))) < steps().step_s(prefill((512, 30_000)))


def test_tensor_parallelism_trades_bytes_for_messages() -> None:
    """Four GPUs decode a lone request faster than one, but not four times as fast."""
    one, four = (steps(tensor_parallel_size=size).step_s(decode(1, 1000)) for size in (1, 4))
    assert one / 4 < four < one / 2


def test_sparse_attention_reads_at_most_its_top_tokens() -> None:
    """Beyond 2,048 tokens only the indexer's keys are read: 100 times the context costs far less than 100 times."""
    attention = Attention(
        "mla", 128, 1, 192, 128, kv_lora_rank=512, qk_rope_head_dim=64, index_topk=2048, index_head_dim=128
    )
    sparse, dense = (steps(make_model(attention=a)) for a in (attention, replace(attention, index_topk=None)))
    added, dense_added = (m.step_s(decode(8, 100_000)) - m.step_s(decode(8, 2048)) for m in (sparse, dense))
    assert 0 < added < dense_added / 4


def test_one_token_reads_only_its_experts() -> None:
    """An MoE layer of 64 experts, 2 a token: one token is far from 64 times as cheap as 64, and cheaper by half."""
    model = steps(make_model(experts=Experts(64, 2, 4096, 2048)))
    one, many = (model.step_s(decode(num, 100)) for num in (1, 128))
    assert one < many / 2


def test_additive_reads_weights_once() -> None:
    """With a small chunk, two passes read all weights twice; one alone hides the chunk. Additive lies between."""
    shape = mixed(32, 1000, (128, 0))
    additive, two_pass, longer = (steps(composition=name).step_s(shape) for name in COMPOSITIONS)
    assert longer < additive < two_pass
    assert longer == pytest.approx(max(steps().step_s(decode(32, 1000)), steps().step_s(prefill((128, 0)))), rel=0.01)
    assert two_pass > 1.25 * additive


def test_attention_is_launched_once_in_a_mixed_step() -> None:
    """A mixed step's attention costs less than its decode and prefill attention apart: 32 launches fewer."""
    model = steps()
    apart = attention_s(model, decode(32, 1000)) + attention_s(model, prefill((128, 0)))
    assert apart - attention_s(model, mixed(32, 1000, (128, 0))) == pytest.approx(32 * 11.796e-6)


def test_decodes_ride_in_the_kernel_of_the_chunks_where_it_takes_them() -> None:
    """As in FlashAttention 2: one kernel a layer over both, with a tile for each decode and head, and 4.6 us a wave."""
    fit = replace(FITS.prefill_attention, decode_rows=47.5, decode_wave_s=4.6e-6)
    gpu = replace(h100(), operators=replace(FITS, prefill_attention=fit))
    work = prefill_work(prefill_attention(FULL, 2.0, fit), ((512, 1000),))
    work = together(work, riding_work(64, 64 * 2000, FULL, 2.0, fit))
    expected = 11.796e-6 + prefill_attention_s(work, prefill_speed(fit, gpu)) + 4.6e-6 * 64 * 32 / 132
    riding_s, apart_s = (attention_s(steps(gpu=g), mixed(64, 2000, (512, 1000))) for g in (gpu, h100()))
    assert riding_s == pytest.approx(32 * expected)
    assert riding_s > apart_s


def test_a_kernel_launches_as_many_tiles_for_each_request_as_its_longest_chunk_has() -> None:
    """Of 1,000 and 100 tokens and three decodes, 8 tiles of 128 queries each: 7 + 3 x 7 find nothing to do, in every head."""
    fit = replace(FITS.prefill_attention, decode_rows=47.5, idle_tile_s=5e-9)
    plain = replace(fit, idle_tile_s=0.0)
    times = [
        attention_s(
            steps(gpu=replace(h100(), operators=replace(FITS, prefill_attention=one))),
            mixed(3, 500, (1000, 0), (100, 0)),
        )
        for one in (fit, plain)
    ]
    assert times[0] - times[1] == pytest.approx(32 * 32 * 28 * 5e-9)


def test_a_matrix_takes_what_its_number_of_rows_was_measured_to_take() -> None:
    """In between in proportion, and outside as at the nearest."""
    linear = Linear("o_proj", 4096, 4096, "row")
    by_rows = replace(FITS.gemm["bf16"], by_rows=((16.0, 1.1), (32.0, 1.3)))
    gpu = replace(h100(), operators=replace(FITS, gemm={**FITS.gemm, "bf16": by_rows}))
    factors = [gemm_s(rows, linear, gpu) / gemm_s(rows, linear, h100()) for rows in (1.0, 16.0, 24.0, 32.0, 100.0)]
    assert factors == pytest.approx([1.1, 1.1, 1.2, 1.3, 1.3])


SHAPES = st.builds(
    lambda num, context, chunks: StepShape(num, num * context, tuple(chunks), num + len(chunks)),
    st.integers(0, 600),
    st.integers(1, 8000),
    st.lists(st.tuples(st.integers(2, 2048), st.integers(0, 8000)), max_size=4),
).filter(lambda shape: shape.num_tokens > 0)


@given(
    shape=SHAPES,
    device=st.sampled_from(sorted(DEVICES)),
    composition=st.sampled_from(COMPOSITIONS),
    eager=st.booleans(),
    tp=st.sampled_from([1, 2]),
)
def test_an_explanation_adds_up(shape: StepShape, device: str, composition: Composition, eager: bool, tp: int) -> None:
    """Operators, launches and host together are the step, for prefill and decode parts that are never negative."""
    model = steps(gpu=DEVICES[device](), composition=composition, enforce_eager=eager, tensor_parallel_size=tp)
    times = model.explain(shape)
    total = sum(time.prefill_s + time.decode_s for time in times)
    assert total == pytest.approx(model.step_s(shape), rel=1e-9)
    assert all(time.prefill_s >= -1e-15 and time.decode_s >= -1e-15 for time in times)


@given(num_decodes=st.integers(1, 600), context=st.integers(1, 10_000))
def test_a_decode_curve_equals_single_steps(num_decodes: int, context: int) -> None:
    """What the curve says of a sum of contexts is what the step takes."""
    model = steps(make_model(attention=replace(FULL, kind="sliding", window=4096)))
    assert model.decode_curve(num_decodes).at(num_decodes * context) == model.step_s(decode(num_decodes, context))


@given(shape=SHAPES, composition=st.sampled_from(COMPOSITIONS))
def test_more_work_never_takes_less(shape: StepShape, composition: Composition) -> None:
    """Longer contexts, a longer chunk behind more tokens: no step becomes shorter."""
    model = steps(composition=composition)
    longer = shape._replace(
        decode_context_tokens=shape.decode_context_tokens + shape.num_decodes,
        chunks=tuple((tokens, computed + 100) for tokens, computed in shape.chunks),
    )
    assert model.step_s(longer) >= model.step_s(shape)


@given(shape=SHAPES, factor=st.floats(1.1, 4))
def test_more_bandwidth_is_never_slower(shape: StepShape, factor: float) -> None:
    """The same GPU with faster memory takes no longer for any step."""
    assert steps(gpu=faster(h100(), factor)).step_s(shape) <= steps().step_s(shape)


@given(shape=SHAPES)
def test_the_same_shape_takes_the_same_time(shape: StepShape) -> None:
    """Step times are pure: what was asked before changes nothing, to the last bit."""
    warm = steps()
    warm.step_s(decode(7, 77))
    warm.decode_curve(9).at(99)
    first = warm.step_s(shape)
    assert first == warm.step_s(shape) == steps().step_s(shape)
