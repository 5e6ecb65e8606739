"""The kernels that every step runs for all its tokens: which, how often and of what size."""

import pytest

from sim.specs.engine import EngineConfig, ResolvedEngine
from sim.specs.model import Experts, ModelSpec
from sim.specs.vllm import resolve_engine
from sim.steptime.links import all_reduce_s
from sim.steptime.operators import elementwise_s, experts_s, gemm_s
from sim.steptime.token_work import TokenWork
from tests.steptime.makers import h100, make_model


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


def test_experts_are_cut_by_tensor_parallelism() -> None:
    """Each of two GPUs holds half of every expert's intermediate dimension."""
    model = make_model(experts=Experts(8, 2, 4096, 14336))
    seconds = TokenWork(model, h100(), resolved(model, 2)).seconds_by_operator(64)
    assert seconds["experts"] == pytest.approx(32 * experts_s(64.0, Experts(8, 2, 4096, 7168), h100()))


@pytest.mark.parametrize(("size", "per_layer"), [(1, 10), (2, 12)])
def test_launches_a_layer(size: int, per_layer: int) -> None:
    """Four matrices, KV write, attention, four elementwise kernels, and two all-reduces where there are several GPUs."""
    assert TokenWork(make_model(), h100(), resolved(make_model(), size)).num_launches == 32 * per_layer
