"""Formats that need a kernel of their own: how they are stored, what they are multiplied in, and who can run them."""

from pathlib import Path
from typing import Any

import pytest

from sim.deployment import deploy
from sim.errors import ConfigError, ModelError
from sim.measure.confidence import confidence
from sim.measure.likeness import traits
from sim.specs.engine import EngineConfig
from sim.specs.hardware import load_gpu
from sim.specs.model import ModelSpec
from sim.specs.models import load_model
from sim.specs.vllm import resolve_engine
from sim.steptime.operators import gemm_s
from tests.specs.test_models_layers import write_config
from tests.specs.test_models_quantization import MOE, formats, quantized

LARGE = {"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_key_value_heads": 8}
INT8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
FP8 = {"num_bits": 8, "type": "float", "strategy": "channel"}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}
TWO_OF_FOUR = {
    "format": "sparse-24-bitmask",
    "sparsity_structure": "2:4",
    "targets": ["Linear"],
    "ignore": ["lm_head", "re:.*o_proj"],
}


def tensors(weights: dict[str, Any] | None, inputs: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A compressed-tensors section with one group for all linear layers, or none."""
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}} if weights else {}
    return {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head"], **more}


def large(folder: Path, config: dict[str, Any], **changes: Any) -> ModelSpec:
    return quantized(folder, config, **LARGE, **changes)


def refusal(model: ModelSpec, gpu: str, version: str) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve_engine(EngineConfig(), model, load_gpu(gpu), vllm_version=version)
    return str(caught.value)


@pytest.mark.parametrize(
    ("weights", "inputs", "name", "bits", "compute"),
    [
        (FP8, FP8, "fp8_2of4", 5.0, "fp8"),
        (INT8, INT8, "int8_2of4", 5.0, "int8"),
        (None, None, "bf16_2of4", 9.0, "bf16"),
    ],
)
def test_two_of_four_weights_are_stored_with_an_index_for_each(
    tmp_path: Path, weights: dict[str, Any], inputs: dict[str, Any], name: str, bits: float, compute: str
) -> None:
    """Half the bits and two more for each that is kept; what the list ignores stays dense."""
    model = quantized(tmp_path, tensors(weights, inputs, sparsity_config=TWO_OF_FOUR))
    by_name = {linear.name: linear.weight for linear in model.layers[0].linears}
    weight, dense = by_name["qkv_proj"], by_name["o_proj"]
    assert (weight.name, weight.bits + weight.scale_bits, weight.compute) == (name, bits, compute)
    assert (dense.name, dense.is_2_of_4) == (name.removesuffix("_2of4"), False)
    assert model.quantization == name
    assert model.output_head.weight.name == "bf16"


def test_only_what_the_sparse_kernels_take_is_sparse(tmp_path: Path) -> None:
    """Weights quantised alone, and another structure, are dense weights with zeros in them to vLLM."""
    unstructured = {**TWO_OF_FOUR, "sparsity_structure": "unstructured"}
    unknown = {**TWO_OF_FOUR, "format": ["dense"]}
    assert quantized(tmp_path, tensors(INT4, sparsity_config=TWO_OF_FOUR)).quantization == "int4"
    assert quantized(tmp_path, tensors(FP8, FP8, sparsity_config=unknown)).quantization == "fp8"
    assert quantized(tmp_path, tensors(FP8, FP8, sparsity_config=unstructured)).quantization == "fp8"


@pytest.mark.parametrize(
    "config",
    [tensors(INT4, format="marlin-24"), {"quant_method": "gptq", "checkpoint_format": "marlin_24", "group_size": 128}],
)
def test_marlin_stores_4_bit_weights_two_of_four(tmp_path: Path, config: dict[str, Any]) -> None:
    """2 bits a weight, 1 of indices and 1/8 of scales: 3.125."""
    weight = quantized(tmp_path, config).layers[0].linears[0].weight
    assert (weight.name, weight.bits + weight.scale_bits) == ("int4_2of4", 3.125)


def test_sparse_weights_take_less_memory_and_less_time(tmp_path: Path) -> None:
    """5 of 8 bits in the ledger and in what one row reads; twice the peak where many rows compute."""
    gpu = load_gpu("h100")
    sparse = large(tmp_path, tensors(FP8, FP8, sparsity_config={**TWO_OF_FOUR, "ignore": []}))
    dense = large(tmp_path, tensors(FP8, FP8))
    plans = [deploy(m, gpu, vllm_version="0.18.0").plan for m in (sparse, dense)]
    parts = [next(line for line in plan.ledger if line.name == "attention and dense layers") for plan in plans]
    assert parts[0].num_bytes == pytest.approx(parts[1].num_bytes * 5 / 8)

    down = [model.layers[0].linears[-1] for model in (sparse, dense)]
    launch_s = gpu.operators.gemm["fp8"].launch_s
    one, many = ([gemm_s(rows, linear, gpu) - launch_s for linear in down] for rows in (1.0, 8192.0))
    assert one[0] / one[1] == pytest.approx(5 / 8, rel=0.02)
    assert 0.5 < many[0] / many[1] < 0.6


def test_sparse_weights_run_where_vllm_had_kernels(tmp_path: Path) -> None:
    """On Hopper up to 0.18; the forecast is no validated one."""
    sparse, gpu = quantized(tmp_path, tensors(FP8, FP8, sparsity_config=TWO_OF_FOUR)), load_gpu("h100")
    engine = resolve_engine(EngineConfig(), sparse, gpu, vllm_version="0.18.1")
    assert confidence(traits(sparse, gpu, engine)).level == "extrapolated"
    assert "vLLM 0.19.0 has no kernels for 2:4 sparse weights, 0.18 was the last" in refusal(sparse, "h100", "0.19.0")
    assert "run on Hopper (compute capability 9.0), got b200-sxm (10.0)" in refusal(sparse, "b200-sxm", "0.18.1")


def test_4_bit_sparse_weights_run_from_ampere_on(tmp_path: Path) -> None:
    """Marlin's kernel: up to 0.14, on NVIDIA GPUs from compute capability 8.0."""
    sparse = quantized(tmp_path, tensors(INT4, format="marlin-24"))
    resolve_engine(EngineConfig(), sparse, load_gpu("a100"), vllm_version="0.14.1")
    assert "0.14 was the last" in refusal(sparse, "a100", "0.16.0")
    assert "compute capability 8.0 and up, got mi300x" in refusal(sparse, "mi300x", "0.14.1")


def test_8_bit_integers_do_not_run_on_blackwell(tmp_path: Path) -> None:
    """With 8-bit inputs; with 16-bit ones, and on Hopper, they do."""
    int8, weight_only = quantized(tmp_path, tensors(INT8, INT8)), quantized(tmp_path, tensors(INT8))
    assert "does not run on Blackwell, got b200-sxm; use an FP8 checkpoint" in refusal(int8, "b200-sxm", "0.33.0")
    assert "got rtx-pro-6000" in refusal(int8, "rtx-pro-6000", "0.19.0")
    resolve_engine(EngineConfig(), weight_only, load_gpu("b200-sxm"))
    resolve_engine(EngineConfig(), int8, load_gpu("h100"))


def test_sparse_experts_have_no_kernel(tmp_path: Path) -> None:
    """The sparse kernels multiply linear layers alone."""
    sparse = quantized(tmp_path, tensors(FP8, FP8, sparsity_config=TWO_OF_FOUR), **MOE)
    assert "no 2:4 sparse kernel for routed experts" in refusal(sparse, "h100", "0.18.1")


def test_w4a8_multiplies_in_fp8_on_hopper(tmp_path: Path) -> None:
    """4.125 bits are read, twice the bf16 rate is reached; nothing like it was measured."""
    gpu = load_gpu("h100")
    w4a8, awq = large(tmp_path, tensors(INT4, FP8)), large(tmp_path, tensors(INT4))
    weight = w4a8.layers[0].linears[0].weight
    assert (weight.name, weight.bits + weight.scale_bits, weight.compute) == ("w4a8_fp8", 4.125, "fp8")
    engine = resolve_engine(EngineConfig(), w4a8, gpu)
    assert confidence(traits(w4a8, gpu, engine)).level == "extrapolated"
    fp8 = large(tmp_path, tensors(FP8, FP8))
    times = [gemm_s(8192.0, model.layers[0].linears[-1], gpu) for model in (w4a8, awq, fp8)]
    assert times[0] < 0.8 * times[1]
    assert times[0] == pytest.approx(times[2], rel=0.02)


@pytest.mark.parametrize(
    ("weights", "inputs", "gpu", "version", "expected"),
    [
        (INT4, FP8, "h100", "0.10.1", "a kernel for them since 0.10.2, got vllm_version 0.10.1"),
        (INT4, FP8, "a100", "0.33.0", "runs on Hopper (compute capability 9.0), got a100-sxm-80gb (8.0)"),
        (INT4 | {"group_size": 32}, FP8, "h100", "0.33.0", "4-bit weights in groups of 128 only"),
        (INT4, INT8, "h100", "0.33.0", "no GPU kernel that multiplies them with int8 inputs by default"),
        (INT4, {"num_bits": 4, "type": "int"}, "b200", "0.33.0", "stores weights as w4a4_int4: vLLM 0.33.0 has no"),
    ],
)
def test_narrow_integers_without_a_kernel_are_refused(
    tmp_path: Path, weights: dict[str, Any], inputs: dict[str, Any], gpu: str, version: str, expected: str
) -> None:
    """One sentence with the format, the version or GPU, and the rule."""
    assert expected in refusal(quantized(tmp_path, tensors(weights, inputs)), gpu, version)


def test_older_versions_take_int8_inputs_for_fp8_ones(tmp_path: Path) -> None:
    """From 0.10.2 to 0.30 the test for W4A8 looked at bits, not at types."""
    w4a8 = quantized(tmp_path, tensors(INT4, INT8))
    resolve_engine(EngineConfig(), w4a8, load_gpu("h200"), vllm_version="0.30.0")
    assert "w4a8_int8" in refusal(w4a8, "h200", "0.31.0")


def test_w4a8_experts_came_later(tmp_path: Path) -> None:
    """The grouped kernel is there since 0.13.0."""
    w4a8 = quantized(tmp_path, tensors(INT4, FP8), **MOE)
    resolve_engine(EngineConfig(), w4a8, load_gpu("h100"), vllm_version="0.13.0")
    assert "since 0.13.0" in refusal(w4a8, "h100", "0.12.0")


def test_formats_that_no_version_loads_are_refused(tmp_path: Path) -> None:
    """Modelopt's W4A8_AWQ, and inputs of other widths, once read as AWQ."""
    with pytest.raises(ModelError, match="W4A8_AWQ is loaded by no vLLM version"):
        quantized(tmp_path, {"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"})
    with pytest.raises(ModelError, match="int4, int8 or fp8, got `type` int and `num_bits` 2"):
        quantized(tmp_path, tensors(INT4, {"num_bits": 2, "type": "int"}))


def test_old_checkpoints_say_compression_config(tmp_path: Path) -> None:
    """The section's first name, which vLLM still reads."""
    path = write_config(tmp_path, compression_config=tensors(FP8, FP8))
    assert set(formats(load_model(path).layers[0]).values()) == {"fp8"}
