"""vLLM's engine arguments under vLLM's own names: as given, and resolved against a model, a GPU and a vLLM version."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any, Literal, TypeGuard, get_args

from sim.errors import ConfigError, check_choice
from sim.specs.rules import SchedulingRules

Policy = Literal["fcfs", "priority"]
CudagraphMode = Literal["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"]
PerformanceMode = Literal["balanced", "interactivity", "throughput"]
UsageContext = Literal["server", "offline"]

MAX_COUNT = 2**31 - 1  # of tokens, requests, blocks and GPUs, which vLLM's kernels hold in 32 bits
MAX_BYTES = 2**60
BLOCK_SIZES = (1, 8, 16, 32, 64, 128, 256)  # vLLM's choices for --block-size
KV_CACHE_DTYPE_BYTES: Mapping[str, int] = {"bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}

_LEAST: Mapping[str, int] = {
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 1,
    "max_num_scheduled_tokens": 1,
    "max_num_active_seqs": 1,
    "kv_cache_memory_bytes": 1,
    "num_gpu_blocks_override": 2,  # block 0 is the null block
    "long_prefill_token_threshold": 0,
    "max_cudagraph_capture_size": 1,
}
_SWITCHES = (
    "enable_expert_parallel",
    "language_model_only",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "async_scheduling",
    "long_prefill_token_threshold_adaptive",
    "scheduler_reserve_full_isl",
    "enforce_eager",
)
CHOICES: Mapping[str, tuple[str, ...]] = {
    "kv_cache_dtype": ("auto", *KV_CACHE_DTYPE_BYTES),
    "scheduling_policy": get_args(Policy),
    "cudagraph_mode": get_args(CudagraphMode),
    "performance_mode": get_args(PerformanceMode),
}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Arguments as a user gives them to `vllm serve`; None leaves the choice to the vLLM version, the GPU and the model.

    `max_model_len="auto"` (vLLM's -1) shrinks the context to what fits. `quantization` quantises bf16 weights as
    `--quantization` would (fp8, ...); a checkpoint's own quantization_config needs no flag. Pipeline stages are known to
    the memory plan only.
    """

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    enable_expert_parallel: bool = False
    max_model_len: int | Literal["auto"] | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_scheduled_tokens: int | None = None
    max_num_active_seqs: int | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    block_size: int | None = None
    kv_cache_dtype: str = "auto"
    quantization: str | None = None
    language_model_only: bool = False
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    scheduling_policy: Policy = "fcfs"
    async_scheduling: bool | None = None
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    scheduler_reserve_full_isl: bool | None = None
    watermark: float = 0.0
    enforce_eager: bool = False
    cudagraph_mode: CudagraphMode | None = None
    cudagraph_capture_sizes: tuple[int, ...] | None = None
    max_cudagraph_capture_size: int | None = None
    performance_mode: PerformanceMode = "balanced"

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            if (value := getattr(self, name)) is not None:
                _check_integer(name, value, least, MAX_BYTES if name.endswith("_bytes") else MAX_COUNT)
        for name in _SWITCHES:
            _check_switch(name, getattr(self, name))
        for name, choices in CHOICES.items():
            if (value := getattr(self, name)) is not None:
                check_choice(name, value, choices)
        _check_max_model_len(self.max_model_len)
        _check_memory_fractions(self.gpu_memory_utilization, self.watermark)
        _check_block_size(self.block_size)
        if self.quantization is not None and not isinstance(self.quantization, str):
            raise ConfigError(f"quantization must be a name such as fp8, got {self.quantization!r}.")
        if self.cudagraph_capture_sizes is not None:
            object.__setattr__(self, "cudagraph_capture_sizes", _capture_sizes(self.cudagraph_capture_sizes))

    @property
    def given(self) -> dict[str, Any]:
        """Those that are not at their defaults, in order: what a command line has to spell out."""
        values = {entry: getattr(self, entry.name) for entry in fields(self)}
        return {entry.name: value for entry, value in values.items() if value != entry.default}

    def to_json(self) -> dict[str, Any]:
        """The same as JSON has them."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in self.given.items()}


@dataclass(frozen=True, slots=True)
class ResolvedEngine:
    """The same arguments with every choice made, as vLLM's start-up would make it; read by memory, steptime and serving.

    `max_model_len` is None while "auto" waits for the memory plan. `cudagraph_capture_sizes` is ascending and empty
    under `enforce_eager` (mode NONE). `kv_cache_dtype_bytes` is bytes a stored number.
    """

    vllm_version: str
    tensor_parallel_size: int
    pipeline_parallel_size: int
    enable_expert_parallel: bool
    max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_scheduled_tokens: int | None
    max_num_active_seqs: int | None
    gpu_memory_utilization: float
    kv_cache_memory_bytes: int | None
    num_gpu_blocks_override: int | None
    block_size: int
    kv_cache_dtype: str
    kv_cache_dtype_bytes: int
    language_model_only: bool
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    scheduling_policy: Policy
    async_scheduling: bool
    long_prefill_token_threshold: int
    long_prefill_token_threshold_adaptive: bool
    scheduler_reserve_full_isl: bool
    watermark: float
    enforce_eager: bool
    cudagraph_mode: CudagraphMode
    cudagraph_capture_sizes: tuple[int, ...]
    rules: SchedulingRules
    subtracts_graph_memory: bool  # from the KV budget: since 0.20.0
    counts_tokens_of_requests: bool  # in the cache size it logs: since 0.20.1

    @property
    def num_gpus(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def num_batches_in_flight(self) -> int:
        """vLLM's batch queue: one a pipeline stage, and one more under async scheduling."""
        return self.pipeline_parallel_size + self.async_scheduling


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _check_integer(name: str, value: object, least: int, most: int) -> None:
    if not _is_integer(value) or value < least:
        raise ConfigError(
            f"{name} must be an integer of at least {least}, got {value!r:.40}; leave it out for the default."
        )
    if value > most:
        raise ConfigError(
            f"{name} must be an integer of at most {most:,}, got {value!r:.40}; leave it out for the default."
        )


def _check_switch(name: str, value: object) -> None:
    if value is not None and not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, got {value!r}.")


def _check_max_model_len(value: object) -> None:
    if value is not None and value != "auto" and (not _is_integer(value) or not 2 <= value <= MAX_COUNT):
        raise ConfigError(
            f"max_model_len must be an integer of at least 2 (a prompt token and a generated one) and at most {MAX_COUNT:,}, "
            f"or 'auto', got {value!r:.40}."
        )


def _check_memory_fractions(gpu_memory_utilization: object, watermark: object) -> None:
    if gpu_memory_utilization is not None and not (
        _is_number(gpu_memory_utilization) and 0 < gpu_memory_utilization <= 1
    ):
        raise ConfigError(
            "gpu_memory_utilization must be a fraction of the GPU's memory above 0 and up to 1, "
            f"got {gpu_memory_utilization!r}; 0.9 means 90 %."
        )
    if not (_is_number(watermark) and 0 <= watermark < 1):
        raise ConfigError(f"watermark must be a fraction of the KV blocks, at least 0 and below 1, got {watermark!r}.")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool)


def _check_block_size(value: object) -> None:
    if value is not None and (not _is_integer(value) or value not in BLOCK_SIZES):
        raise ConfigError(f"block_size must be one of {', '.join(map(str, BLOCK_SIZES))} tokens, got {value!r}.")


def _capture_sizes(sizes: object) -> tuple[int, ...]:
    """Ascending and without repetition, as vLLM takes them."""
    if (
        not isinstance(sizes, tuple | list)
        or not sizes
        or not all(_is_integer(size) and 1 <= size <= MAX_COUNT for size in sizes)
    ):
        raise ConfigError(
            f"cudagraph_capture_sizes must be a list of integers from 1 to {MAX_COUNT:,}, got {sizes!r:.80}; "
            "use enforce_eager or cudagraph_mode NONE to capture nothing."
        )
    return tuple(sorted(set(sizes)))
