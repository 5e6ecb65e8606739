"""The kernels that every step runs for all its tokens: which, how often and of what size."""

from dataclasses import replace
from typing import Any

import pytest

from sim.specs.engine import EngineConfig, ResolvedEngine
from sim.specs.hardware import load_gpu
from sim.specs.model import BF16, Experts, Linear, ModelSpec, WeightFormat
from sim.specs.quantization import FP8, MXFP4, NVFP4, fp8_block
from sim.specs.vllm import resolve_engine
from sim.steptime.links import all_reduce_s
from sim.steptime.operators import elementwise_s, gemm_s, served_gemm
from sim.steptime.token_work import TokenWork
from tests.steptime.makers import experts_s, h100, make_model


def resolved(model: ModelSpec, tensor_parallel_size: int = 1) -> ResolvedEngine:
    return resolve_engine(EngineConfig(tensor_parallel_size), model, h100())


def test_dense_layers_on_one_gpu() -> None:
    """Each matrix once a layer; two norms, rope and the activation a layer, and three norms at the ends."""
    model, gpu = make_model(), h100()
    seconds = TokenWork(model, gpu, resolved(model)).seconds_by_operator(64)
    assert set(seconds) == {"qkv_proj", "o_proj", "gate_up_proj", "down_proj", "elementwise"}
    for linear in model.layers[0].linears:
        assert seconds[linear.name] == pytest.approx(32 * gemm_s(64.0, linear, gpu))
    norm, rope, activation = 4 * 2 * 4096, 2 * 2 * (32 + 8) * 128, 2 * (28672 + 14336)
    layer_s = sum(elementwise_s(64.0 * moved, gpu) for moved in (norm, norm, rope, activation))
    assert seconds["elementwise"] == pytest.approx(32 * layer_s + 3 * elementwise_s(64.0 * norm, gpu))


def test_two_all_reduces_a_layer_and_one_for_the_embedding() -> None:
    """65 messages of 64 x 4,096 numbers in bf16."""
    seconds = TokenWork(make_model(), h100(), resolved(make_model(), 4)).seconds_by_operator(64)
    assert seconds["all_reduce"] == pytest.approx(65 * all_reduce_s(64.0 * 4096 * 2, 4, h100()))


def test_norms_over_all_heads_are_added_up_between_ranks() -> None:
    """Two kernels a layer, and with several GPUs a third message: two squares of 4 bytes a token (MiniMax-M2)."""
    plain = make_model()
    attention = replace(plain.layers[0].attention, norms_all_heads=True)
    normed = replace(plain, layers=tuple(replace(layer, attention=attention) for layer in plain.layers))
    gpu, heads_bytes = h100(), 2 * (8 + 2) * 128
    work, other = (TokenWork(model, gpu, resolved(model, 4)) for model in (normed, plain))
    seconds, without = work.seconds_by_operator(64), other.seconds_by_operator(64)
    norms_s = elementwise_s(64.0 * heads_bytes, gpu) + elementwise_s(64.0 * 2 * heads_bytes, gpu)
    assert seconds["elementwise"] == pytest.approx(without["elementwise"] + 32 * norms_s)
    assert seconds["all_reduce"] == pytest.approx(without["all_reduce"] + 32 * all_reduce_s(64.0 * 2 * 4, 4, gpu))
    assert work.num_launches == other.num_launches + 32 * 3
    assert (
        TokenWork(normed, gpu, resolved(normed)).num_launches
        == TokenWork(plain, gpu, resolved(plain)).num_launches + 32 * 2
    )


def test_experts_are_cut_by_tensor_parallelism() -> None:
    """Each of two GPUs holds half of every expert's intermediate dimension."""
    model = make_model(experts=Experts(8, 2, 4096, 14336))
    seconds = TokenWork(model, h100(), resolved(model, 2)).seconds_by_operator(64)
    assert seconds["experts"] == pytest.approx(32 * experts_s(64.0, Experts(8, 2, 4096, 7168), h100()))


def test_marlin_multiplies_experts_in_16_bits_whatever_else_the_gpu_has() -> None:
    """MXFP4 has kernels of its own on Hopper; `moe_backend` chooses Marlin's in their place."""
    experts = Experts(128, 4, 2880, 2880, weight=MXFP4)
    model, gpu = make_model(experts=experts), h100()
    engine = resolved(model)
    by_default, marlin = (
        TokenWork(model, gpu, replace(engine, moe_backend=backend)).seconds_by_operator(4096)["experts"]
        for backend in ("auto", "marlin")
    )
    int4 = Experts(128, 4, 3072, 2944, weight=replace(MXFP4, name="int4"))  # Marlin's tiles
    assert by_default == pytest.approx(32 * experts_s(4096.0, experts, gpu))
    assert marlin == pytest.approx(32 * experts_s(4096.0, int4, gpu))
    assert marlin > 1.25 * by_default


def test_experts_of_mxfp4_are_padded_for_their_kernel() -> None:
    """Of 2,880 in two each GPU has 1,440, which Triton pads to 1,472."""
    model = make_model(experts=Experts(128, 4, 2880, 2880, weight=MXFP4))
    seconds = TokenWork(model, h100(), resolved(model, 2)).seconds_by_operator(64)
    laid_out = Experts(128, 4, 2880, 1472, weight=MXFP4)
    assert seconds["experts"] == pytest.approx(32 * experts_s(64.0, laid_out, h100()))


def test_a_kernel_of_its_own_quantises_the_inputs_of_4_bits() -> None:
    """One more launch of an elementwise kernel a matrix on B200; H100 has no such numbers and multiplies in 16 bits."""
    linear = Linear("o_proj", 4096, 4096, "row", weight=NVFP4)
    plain = make_model()
    model = replace(plain, layers=tuple(replace(layer, linears=(linear,)) for layer in plain.layers))
    for gpu, launch_s in ((load_gpu("b200-sxm"), 2.3e-6), (h100(), 0.0)):
        seconds = TokenWork(model, gpu, resolve_engine(EngineConfig(), model, gpu)).seconds_by_operator(8)
        assert seconds["o_proj"] == pytest.approx(32 * (gemm_s(8.0, linear, gpu) + launch_s))


SPARED_S = 2.3e-6 + 512 * 4096 * (3 / 0.8 + 1 / 0.5) / 3.35e12
"""2.3 us, 3 bytes an input at 0.8 of the bandwidth, and one at half of it."""
OTHERWISE_S = 512 * 4096 * (3 / 0.8 - 3 / 0.5) / 3.35e12
"""3 bytes an input at 0.8 of the bandwidth, by what was timed with the matrix, in place of half of it, by what a server has."""


@pytest.mark.parametrize(
    ("name", "weight", "changes", "spared_s"),
    [
        ("qkv_proj", FP8, {}, SPARED_S),
        ("down_proj", FP8, {}, SPARED_S),
        ("o_proj", FP8, {}, OTHERWISE_S),
        ("qkv_proj", fp8_block(), {}, OTHERWISE_S),
        ("qkv_proj", FP8, {"enforce_eager": True}, OTHERWISE_S),
        ("qkv_proj", BF16, {}, 0.0),
    ],
)
def test_a_norm_writes_fp8_where_layers_are_compiled(
    name: str, weight: WeightFormat, changes: dict[str, Any], spared_s: float
) -> None:
    """What a layer of 4,096 inputs spares on an H100; not behind attention, not with scales of blocks, and not eagerly."""
    linear = Linear(name, 4096, 4096, "replicated", weight=weight)
    plain, gpu = make_model(), h100()
    model = replace(plain, layers=tuple(replace(layer, linears=(linear,)) for layer in plain.layers))
    engine = resolve_engine(EngineConfig(**changes), model, gpu)
    found = TokenWork(model, gpu, engine).seconds_by_operator(512)[name]
    assert 32 * gemm_s(512.0, linear, gpu) - found == pytest.approx(32 * spared_s, abs=1e-12)


def test_a_server_does_not_quantise_by_what_was_timed() -> None:
    """However slow the kernels were that quantise inputs in a table, a matrix of a server takes the same."""
    linear, gpu = Linear("o_proj", 4096, 4096, "row", weight=FP8), h100()
    slow = replace(gpu.operators.gemm["fp8"], quantise_efficiency=0.2)
    table = replace(gpu, operators=replace(gpu.operators, gemm={**gpu.operators.gemm, "fp8": slow}))
    longer_s = 512 * 4096 * 3 * (1 / 0.2 - 1 / 0.8) / 3.35e12
    assert gemm_s(512.0, linear, table) - gemm_s(512.0, linear, gpu) == pytest.approx(longer_s)
    assert served_gemm(512.0, linear, table).seconds == pytest.approx(served_gemm(512.0, linear, gpu).seconds)


def test_versions_before_0_10_quantised_by_themselves() -> None:
    linear = Linear("qkv_proj", 4096, 4096, "replicated", weight=FP8)
    plain, gpu = make_model(), h100()
    model = replace(plain, layers=tuple(replace(layer, linears=(linear,)) for layer in plain.layers))
    older, newer = (
        TokenWork(model, gpu, resolve_engine(EngineConfig(), model, gpu, vllm_version=version)).seconds_by_operator(
            512
        )["qkv_proj"]
        for version in ("0.9.2", "0.10.0")
    )
    assert newer < older == pytest.approx(32 * served_gemm(512.0, linear, gpu).seconds)


@pytest.mark.parametrize(("size", "per_layer"), [(1, 10), (2, 12)])
def test_launches_a_layer(size: int, per_layer: int) -> None:
    """Four matrices, KV write, attention, four elementwise kernels, and two all-reduces where there are several GPUs."""
    assert TokenWork(make_model(), h100(), resolved(make_model(), size)).num_launches == 32 * per_layer
