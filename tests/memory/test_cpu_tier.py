"""How many blocks a CPU tier has, and how long one takes to copy."""

from dataclasses import replace
from typing import Any

import pytest

from sim.deployment import deploy
from sim.errors import ConfigError
from sim.memory.transfers import transfer_parameters
from sim.specs.engine import EngineConfig
from sim.specs.hardware import load_gpu
from sim.specs.speculative_config import SpeculativeConfig

EAGLE = SpeculativeConfig.parse({"method": "eagle3", "num_speculative_tokens": 2, "model": "an/eagle3"})
NGRAM = SpeculativeConfig.parse({"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3})


def test_a_size_is_that_of_all_gpus() -> None:
    """Qwen3-32B on two H100: a block of 16 tokens has 64 layers x 8 heads x 128 numbers x 2 x 2 bytes x 16 = 4 MiB."""
    tier = deploy("Qwen3-32B", "h100-sxm", EngineConfig(tensor_parallel_size=2, kv_offloading_size=200)).offload
    assert tier is not None
    assert (tier.block_bytes, tier.cpu_chunks) == (4 * 2**20, 51_200)
    copied_bytes_per_s = load_gpu("h100-sxm").pcie_bytes_per_s * transfer_parameters().pcie_efficiency.value
    assert tier.load_block_s == tier.store_block_s == pytest.approx(2 * 2**20 / copied_bytes_per_s)


@pytest.mark.parametrize("size", [None, 0])
def test_none_is_asked_for(size: float | None) -> None:
    """As in vLLM, nothing and 0 are the same."""
    assert deploy("Llama-3.1-8B", "h100-sxm", EngineConfig(kv_offloading_size=size)).offload is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"vllm_version": "0.28.0"}, r"since vLLM 0\.29, got 0\.28\.0"),
        (
            {"engine": EngineConfig(enable_prefix_caching=False)},
            "off for models with states, where vLLM does not start",
        ),
    ],
)
def test_states_are_handed_over_since_0_29(given: dict[str, Any], message: str) -> None:
    """Qwen3.5-4B: three groups of eight layers with states and one of full attention, a block of 576 tokens in each."""
    asked = {"engine": EngineConfig()} | given
    engine = replace(asked.pop("engine"), kv_offloading_size=10)
    with pytest.raises(ConfigError, match=message):
        deploy("Qwen3.5-4B", "h100-sxm", engine, **asked)
    tier = deploy("Qwen3.5-4B", "h100-sxm", EngineConfig(kv_offloading_size=10)).offload
    assert tier is not None
    assert tier.block_bytes == 8 * 576 * 4 * 256 * 2 * 2
    assert tier.cpu_chunks == 10 * 2**30 // tier.block_bytes


def test_a_block_has_to_fit() -> None:
    """Less than one is refused."""
    with pytest.raises(ConfigError, match=r"0\.001 GiB holds no KV block"):
        deploy("Llama-3.1-8B", "h100-sxm", EngineConfig(kv_offloading_size=0.001))


@pytest.mark.parametrize(
    ("arguments", "vllm_version", "num_copies"),
    [
        ({"tensor_parallel_size": 8}, None, 1),
        ({"tensor_parallel_size": 8}, "0.28.0", 1),
        ({"tensor_parallel_size": 8}, "0.27.1", 8),
        ({"tensor_parallel_size": 16}, None, 16),
    ],
)
def test_of_latents_one_copy_is_kept(arguments: dict[str, Any], vllm_version: str | None, num_copies: int) -> None:
    """DeepSeek-V3.1: 61 layers x 576 numbers x 2 bytes a token on every GPU, once in a machine's memory; a GPU copies as much either way."""
    engine = EngineConfig(kv_offloading_size=100, max_model_len=8192, **arguments)
    tier = deploy("DeepSeek-V3.1", "h200", engine, vllm_version=vllm_version).offload
    assert tier is not None
    block_bytes = 61 * 576 * 2 * deploy("DeepSeek-V3.1", "h200", engine, vllm_version=vllm_version).plan.block_size
    assert tier.block_bytes == block_bytes * num_copies
    copied_bytes_per_s = load_gpu("h200").pcie_bytes_per_s * transfer_parameters().pcie_efficiency.value
    assert tier.load_block_s == pytest.approx(block_bytes / copied_bytes_per_s)


def test_of_windows_a_chunk_is_a_block_of_one_group() -> None:
    """gpt-oss-20b: 12 of its 24 layers in a group, a block of which has 12 x 8 heads x 64 numbers x 2 x 2 bytes x 16 = 384 KiB."""
    tier = deploy("gpt-oss-20b", "h100-sxm", EngineConfig(kv_offloading_size=3, max_model_len=8192)).offload
    assert tier is not None
    assert (tier.block_bytes, tier.cpu_chunks) == (384 * 2**10, 8192)


@pytest.mark.parametrize(
    ("engine", "what"),
    [
        (EngineConfig(enable_prefix_caching=False), "enable_prefix_caching off"),
        (EngineConfig(speculative_config=EAGLE), "speculative_config of method eagle3"),
    ],
)
def test_what_windows_do_not_go_with(engine: EngineConfig, what: str) -> None:
    """Without cached prefixes nobody knows who takes a block; of prompts' ends vLLM stores other blocks than the GPU keeps where a drafter drops some."""
    with pytest.raises(ConfigError, match=f"with {what} for models with sliding windows"):
        deploy("gemma-3-27b-it", "h100-sxm", replace(engine, kv_offloading_size=3, max_model_len=8192))


@pytest.mark.parametrize("size", [-1, float("nan"), True, "8"])
def test_sizes_are_numbers(size: object) -> None:
    """What is no number of GiB is refused by name."""
    with pytest.raises(ConfigError, match=r"^kv_offloading_size must be GiB"):
        EngineConfig(kv_offloading_size=size)  # type: ignore[arg-type]


def test_windows_go_with_drafts_that_read_nothing_ahead() -> None:
    """Drafts from the text leave blocks as they are."""
    engine = EngineConfig(kv_offloading_size=3, max_model_len=8192, speculative_config=NGRAM, async_scheduling=False)
    assert deploy("gpt-oss-20b", "h100-sxm", engine).offload is not None
