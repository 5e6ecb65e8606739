"""How many blocks a CPU tier has, and how long one takes to copy."""

import pytest

from sim.deployment import deploy
from sim.errors import ConfigError
from sim.memory.transfers import transfer_parameters
from sim.specs.engine import EngineConfig
from sim.specs.hardware import load_gpu


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
        ("gpt-oss-120b", 10, "models whose layers all have full attention"),
        ("Llama-3.1-8B", 0.001, r"0\.001 GiB holds no KV block"),
    ],
)
def test_what_is_refused(model: str, size: float, message: str) -> None:
    """Models with windows, and less than a block."""
    with pytest.raises(ConfigError, match=message):
        deploy(model, "h100-sxm", EngineConfig(kv_offloading_size=size))


@pytest.mark.parametrize("size", [-1, float("nan"), True, "8"])
def test_sizes_are_numbers(size: object) -> None:
    """What is no number of GiB is refused by name."""
    with pytest.raises(ConfigError, match=r"^kv_offloading_size must be GiB"):
        EngineConfig(kv_offloading_size=size)  # type: ignore[arg-type]
