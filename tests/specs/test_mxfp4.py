"""Experts of MXFP4 as vLLM's kernels want them, and the sizes that vLLM logged of gpt-oss."""

import pytest

from sim.deployment import deploy
from sim.memory.weights import weight_parts
from sim.specs.engine import EngineConfig
from sim.specs.hardware import load_gpu
from sim.specs.model import Experts
from sim.specs.models import load_model
from sim.specs.mxfp4 import Mxfp4Layout
from sim.specs.quantization import MXFP4
from sim.specs.stages import pipeline_stages
from sim.specs.vllm import resolve_engine
from sim.units import GIB

MODEL = load_model("gpt-oss-120b")
AN_EIGHTH = Experts(128, 4, 2880, 360, bias=True, weight=MXFP4)
MARLIN = EngineConfig(moe_backend="marlin")


def layout(gpu: str, version: str, config: EngineConfig | None = None) -> Mxfp4Layout:
    found = load_gpu(gpu)
    return Mxfp4Layout.of(found, resolve_engine(config or EngineConfig(), MODEL, found, vllm_version=version))


@pytest.mark.parametrize(
    ("gpu", "version", "config", "kernel", "intermediate_size", "hidden_size"),
    [
        ("h100-sxm", "0.33.0", None, "triton", 384, 2880),
        ("h200-sxm", "0.12.0", None, "triton", 384, 2880),
        ("h100-sxm", "0.11.2", None, "marlin", 384, 3072),  # its wheel brings no kernels of Triton's
        ("h100-sxm", "0.33.0", MARLIN, "marlin", 384, 3072),
        ("a100-sxm", "0.33.0", None, "marlin", 384, 3072),
        ("b200-sxm", "0.26.0", None, "flashinfer", 512, 3072),
        ("b300-sxm", "0.27.0", None, "flashinfer", 384, 3072),
        ("b200-sxm", "0.33.0", MARLIN, "marlin", 384, 3072),
    ],
)
def test_experts_are_padded_to_whole_tiles(
    gpu: str, version: str, config: EngineConfig | None, kernel: str, intermediate_size: int, hidden_size: int
) -> None:
    """gpt-oss in eight: 360 of 2,880 numbers each."""
    found = layout(gpu, version, config)
    padded = found.padded(AN_EIGHTH)
    assert (found.kernel, padded.intermediate_size, padded.hidden_size) == (kernel, intermediate_size, hidden_size)


def test_bytes_of_marlins_experts() -> None:
    """Half a byte a weight and a byte for 32 of them, biases of 2 * 384 + 3,072 numbers in 16 bits."""
    num_weights = 3 * 384 * 3072
    assert layout("a100-sxm", "0.33.0").num_bytes(AN_EIGHTH) == 128 * (num_weights * 17 // 32 + 2 * (2 * 384 + 3072))


@pytest.mark.parametrize(
    ("version", "num_weights", "num_loaded_scales"),
    [
        ("0.33.0", 768 * 2880 + 2880 * 384, 0),
        ("0.24.0", 768 * 2880 + 2880 * 384, 3 * 384 * 90),  # those that were loaded stay beside those that are read
        ("0.21.0", 768 * 2944 + 2880 * 384, 3 * 384 * 90),  # rows of whole 128 weights
    ],
)
def test_bytes_of_tritons_experts(version: str, num_weights: int, num_loaded_scales: int) -> None:
    """Half a byte a weight; scales of 32 weights each, for whole 256 rows; biases in 32 bits."""
    num_scales = 768 * 90 + 3072 * 12
    expected = 128 * (num_weights // 2 + num_scales + num_loaded_scales + 4 * (768 + 2880))
    assert layout("h100-sxm", version).num_bytes(AN_EIGHTH) == expected


@pytest.mark.parametrize(
    ("version", "kernel", "loaded_gib"),
    [("0.10.1", "marlin", 65.9651), ("0.14.1", "triton", 64.38)],
)
def test_gpt_oss_takes_what_vllm_logged(version: str, kernel: str, loaded_gib: float) -> None:
    """One H100: vllm-project/vllm #23278 and #33155. Without tiles it would be 60.78 GiB."""
    found = deploy("gpt-oss-120b", "h100-sxm", EngineConfig(), vllm_version=version)
    (whole,) = pipeline_stages(found.model.num_layers, 1)
    parts = weight_parts(found.model, found.gpu, found.engine, whole)
    assert sum(part.num_bytes for part in parts) / GIB == pytest.approx(loaded_gib, rel=0.0015)
    assert any(f"tiles of {kernel}'s kernel" in part.formula for part in parts)
