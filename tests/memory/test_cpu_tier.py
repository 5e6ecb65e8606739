"""How many blocks a CPU tier has, and how long one takes to copy."""

from dataclasses import replace

import pytest

from sim.deployment import deploy
from sim.errors import ConfigError
from sim.memory.transfers import transfer_parameters
from sim.specs.engine import EngineConfig
from sim.specs.hardware import load_gpu
from sim.specs.speculative_config import SpeculativeConfig

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
    ("model", "size", "message"),
    [
        ("Qwen3.5-4B", 10, "models whose layers keep states"),
        ("Llama-3.1-8B", 0.001, r"0\.001 GiB holds no KV block"),
    ],
)
def test_what_is_refused(model: str, size: float, message: str) -> None:
    """Models with states, and less than a block."""
    with pytest.raises(ConfigError, match=message):
        deploy(model, "h100-sxm", EngineConfig(kv_offloading_size=size))


def test_of_windows_a_chunk_is_a_block_of_one_group() -> None:
    """gpt-oss-20b: 12 of its 24 layers in a group, a block of which has 12 x 8 heads x 64 numbers x 2 x 2 bytes x 16 = 384 KiB."""
    tier = deploy("gpt-oss-20b", "h100-sxm", EngineConfig(kv_offloading_size=3, max_model_len=8192)).offload
    assert tier is not None
    assert (tier.block_bytes, tier.cpu_chunks) == (384 * 2**10, 8192)


@pytest.mark.parametrize(
    ("engine", "what"),
    [
        (EngineConfig(enable_prefix_caching=False), "enable_prefix_caching off"),
        (
            EngineConfig(speculative_config=NGRAM),
            "speculative_config",
        ),
    ],
)
def test_what_windows_do_not_go_with(engine: EngineConfig, what: str) -> None:
    """Without cached prefixes nobody knows who takes a block, and of drafters' groups vLLM stores the last block later."""
    with pytest.raises(ConfigError, match=f"with {what} for models with sliding windows"):
        deploy("gpt-oss-20b", "h100-sxm", replace(engine, kv_offloading_size=3, max_model_len=8192))


@pytest.mark.parametrize("size", [-1, float("nan"), True, "8"])
def test_sizes_are_numbers(size: object) -> None:
    """What is no number of GiB is refused by name."""
    with pytest.raises(ConfigError, match=r"^kv_offloading_size must be GiB"):
        EngineConfig(kv_offloading_size=size)  # type: ignore[arg-type]
