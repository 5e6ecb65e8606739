"""vLLM's engine arguments under vLLM's own names: as given, and resolved against a model, a GPU and a vLLM version."""

from dataclasses import dataclass
from typing import Literal

from sim.specs.rules import SchedulingRules

Policy = Literal["fcfs", "priority"]
CudagraphMode = Literal["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"]
PerformanceMode = Literal["balanced", "interactivity", "throughput"]
UsageContext = Literal["server", "offline"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Arguments as a user gives them to `vllm serve`; None leaves the choice to the vLLM version, the GPU and the model.

    `max_model_len="auto"` (vLLM's -1) shrinks the context to what fits. `quantization` quantises bf16 weights as
    `--quantization` would (fp8, ...); a checkpoint's own quantization_config needs no flag.
    """

    tensor_parallel_size: int = 1
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


@dataclass(frozen=True, slots=True)
class ResolvedEngine:
    """The same arguments with every choice made, as vLLM's start-up would make it; read by memory, steptime and serving.

    `max_model_len` is None while "auto" waits for the memory plan. `cudagraph_capture_sizes` is ascending and empty
    under `enforce_eager` (mode NONE). `kv_cache_dtype_bytes` is bytes a stored number.
    """

    vllm_version: str
    tensor_parallel_size: int
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
    subtracts_graph_memory: bool  # from the KV budget: since 0.21
