"""What EngineConfig accepts."""

import math
from dataclasses import asdict
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from sim.errors import ConfigError
from sim.specs.engine import EngineConfig

COUNTS = [
    "tensor_parallel_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_num_scheduled_tokens",
    "max_num_active_seqs",
    "max_num_queued_reqs",
    "max_num_queued_tokens",
    "kv_cache_memory_bytes",
    "num_gpu_blocks_override",
    "long_prefill_token_threshold",
    "max_cudagraph_capture_size",
    "max_model_len",
    "block_size",
]
SWITCHES = [
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "async_scheduling",
    "long_prefill_token_threshold_adaptive",
    "scheduler_reserve_full_isl",
    "enforce_eager",
]


def engine_with(name: str, value: Any) -> EngineConfig:
    return EngineConfig(**{name: value})


def test_everything_may_be_left_to_vllm() -> None:
    """No argument is required, and what is not given stays open."""
    engine = EngineConfig()
    assert engine.max_num_seqs is None
    assert engine.tensor_parallel_size == 1
    assert engine.given == {}


def test_given_is_what_differs_from_the_defaults() -> None:
    """In the order of the fields; a default that is spelled out is not told from one that is left out."""
    engine = EngineConfig(watermark=0.1, max_num_seqs=8, kv_cache_dtype="auto", enforce_eager=False)
    assert list(engine.given.items()) == [("max_num_seqs", 8), ("watermark", 0.1)]


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [-1, 1.5, math.nan, math.inf, True, "64", [1]])
def test_counts_are_whole_numbers(name: str, value: Any) -> None:
    """A count that is negative, fractional, not a number, a switch or text is refused by name, with what was got."""
    with pytest.raises(ConfigError, match=f"^{name} must be .*got {'.' if value == [1] else ''}") as caught:
        engine_with(name, value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("name", [name for name in COUNTS if name != "long_prefill_token_threshold"])
def test_counts_start_at_one(name: str) -> None:
    """Zero is no count; only the long-prefill threshold uses it, for off."""
    with pytest.raises(ConfigError, match=f"^{name} must be "):
        engine_with(name, 0)
    assert EngineConfig(long_prefill_token_threshold=0).long_prefill_token_threshold == 0


def test_an_override_holds_a_block_beside_the_null_block() -> None:
    """One block alone could hold no request."""
    with pytest.raises(ConfigError, match=r"^num_gpu_blocks_override must be an integer of at least 2, got 1"):
        EngineConfig(num_gpu_blocks_override=1)


def test_counts_end_where_the_kernels_do() -> None:
    """Bytes go further."""
    with pytest.raises(ConfigError, match=r"^max_num_seqs must be an integer of at most 2,147,483,647, got 2147483648"):
        EngineConfig(max_num_seqs=2**31)
    assert EngineConfig(kv_cache_memory_bytes=2**31).kv_cache_memory_bytes == 2**31


@pytest.mark.parametrize("name", [name for name, value in asdict(EngineConfig()).items() if value is not None])
def test_what_has_a_default_of_its_own_is_not_left_open(name: str) -> None:
    """None is for what the vLLM version, the GPU or the model decides."""
    with pytest.raises(ConfigError, match=f"^{name} must be .*got None"):
        engine_with(name, None)


def test_numpy_integers_are_integers() -> None:
    """An optimizer's sample may be a numpy number."""
    assert EngineConfig(max_num_seqs=np.int64(64)).max_num_seqs == 64  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("value", [0, 1, "true", math.nan])
def test_switches_are_booleans(name: str, value: Any) -> None:
    """A number or text is no switch."""
    with pytest.raises(ConfigError, match=f"^{name} must be True or False, got "):
        engine_with(name, value)


@pytest.mark.parametrize("value", [0, -0.1, 1.01, 90, math.nan, math.inf, True, "0.9"])
def test_memory_utilization_is_a_fraction(value: Any) -> None:
    """Above 0 and up to 1; 90 for 90 % is the mistake that the message names."""
    with pytest.raises(ConfigError, match=r"^gpu_memory_utilization must be a fraction .* 0\.9 means 90 %\.$"):
        EngineConfig(gpu_memory_utilization=value)


def test_memory_utilization_may_be_whole() -> None:
    """All of the memory is allowed, and any real number type."""
    assert EngineConfig(gpu_memory_utilization=1).gpu_memory_utilization == 1
    assert EngineConfig(gpu_memory_utilization=Fraction(1, 2)).gpu_memory_utilization == 0.5  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [-0.01, 1, math.nan, False, "0.1"])
def test_watermark_leaves_some_blocks(value: Any) -> None:
    """At least 0 and below 1."""
    with pytest.raises(ConfigError, match=r"^watermark must be a fraction of the KV blocks"):
        EngineConfig(watermark=value)


@pytest.mark.parametrize("value", [4, 12, 512])
def test_block_size_is_one_of_those_vllm_takes(value: int) -> None:
    """Powers of two that vLLM's --block-size does not offer are refused too."""
    with pytest.raises(ConfigError, match=f"^block_size must be one of 1, 8, 16, 32, 64, 128, 256 tokens, got {value}"):
        EngineConfig(block_size=value)


@pytest.mark.parametrize(
    ("name", "value", "suggestion"),
    [
        ("scheduling_policy", "fcsf", "fcfs"),
        ("cudagraph_mode", "full_decode", "FULL_DECODE_ONLY"),
        ("performance_mode", "throughputs", "throughput"),
        ("kv_cache_dtype", "fp8_e4m4", "fp8_e4m3"),
    ],
)
def test_choices_suggest_the_nearest(name: str, value: Any, suggestion: str) -> None:
    """A misspelt choice is answered with all of them and the nearest."""
    with pytest.raises(ConfigError, match=rf"^{name} must be one of .*got '{value}'\. Did you mean {suggestion}"):
        engine_with(name, value)


def test_max_model_len_may_be_auto() -> None:
    """As vLLM's -1; any other word is refused."""
    assert EngineConfig(max_model_len="auto").max_model_len == "auto"
    with pytest.raises(ConfigError, match=r"^max_model_len must be an integer of at least 2 .* or 'auto', got 'fit'"):
        EngineConfig(max_model_len="fit")  # type: ignore[arg-type]


def test_quantization_is_a_name() -> None:
    """A number of bits is not one."""
    with pytest.raises(ConfigError, match=r"^quantization must be a name such as fp8, got 8"):
        EngineConfig(quantization=8)  # type: ignore[arg-type]


def test_capture_sizes_are_sorted_without_repetition() -> None:
    """A list in any order is one list of sizes."""
    assert EngineConfig(cudagraph_capture_sizes=[8, 1, 8, 4]).cudagraph_capture_sizes == (1, 4, 8)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [(), (0,), (1, -8), (1.5,), (True,), "8", 8])
def test_capture_sizes_are_positive_integers(value: Any) -> None:
    """An empty list is refused with the way to capture nothing."""
    with pytest.raises(ConfigError, match=r"^cudagraph_capture_sizes must be a list .* use enforce_eager"):
        EngineConfig(cudagraph_capture_sizes=value)
