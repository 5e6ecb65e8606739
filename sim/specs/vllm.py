"""How vLLM's start-up fills in and checks the engine arguments, for any version, model and GPU."""

from typing import NamedTuple, TypeVar

from sim.errors import ConfigError
from sim.specs.capture_sizes import default_sizes, listed_sizes
from sim.specs.engine import KV_CACHE_DTYPE_BYTES, CudagraphMode, EngineConfig, ResolvedEngine, UsageContext
from sim.specs.hardware import HardwareProfile
from sim.specs.kernels import check_kernels
from sim.specs.model import ModelSpec
from sim.specs.releases import NEWEST, PRIORITY_SINCE, Release, parse_version, release_for, unknown_arguments
from sim.units import GIB

T = TypeVar("T")


def resolve_engine(
    engine: EngineConfig,
    model: ModelSpec,
    gpu: HardwareProfile,
    *,
    vllm_version: str | None = None,
    usage: UsageContext = "server",
) -> ResolvedEngine:
    """Every choice that `vllm serve` (or, for `usage="offline"`, the LLM class) would make.

    Raises ConfigError for what that version of vLLM refuses at start-up. A GPU of architecture "CPU" gets the defaults
    of vLLM's CPU platform.
    """
    release = release_for(vllm_version)
    version = vllm_version or NEWEST
    on_cpu = gpu.architecture == "CPU"
    _check_known(engine, version)
    _check_tensor_parallel(engine.tensor_parallel_size, model)
    _check_pipeline_parallel(engine, model, release)
    check_kernels(model, gpu, version)
    max_model_len = _max_model_len(engine, model)
    defaults = _batch_defaults(gpu, release, usage, engine.tensor_parallel_size * engine.pipeline_parallel_size)
    splits_prompts = release.forces_chunked_prefill or _given(engine.enable_chunked_prefill, True)
    batch = _batch_limits(
        engine, release, max_model_len or model.max_model_len, defaults, splits_prompts=splits_prompts
    )
    mode = _cudagraph_mode(engine, release, on_cpu=on_cpu)
    return ResolvedEngine(
        vllm_version=".".join(map(str, parse_version(version))),
        tensor_parallel_size=engine.tensor_parallel_size,
        pipeline_parallel_size=engine.pipeline_parallel_size,
        enable_expert_parallel=engine.enable_expert_parallel,
        max_model_len=max_model_len,
        max_num_seqs=batch.seqs,
        max_num_batched_tokens=batch.tokens,
        max_num_scheduled_tokens=engine.max_num_scheduled_tokens,
        max_num_active_seqs=engine.max_num_active_seqs,
        gpu_memory_utilization=_given(engine.gpu_memory_utilization, release.gpu_memory_utilization),
        kv_cache_memory_bytes=engine.kv_cache_memory_bytes,
        num_gpu_blocks_override=engine.num_gpu_blocks_override,
        block_size=_given(engine.block_size, _default_block_size(model, on_cpu=on_cpu)),
        kv_cache_dtype=engine.kv_cache_dtype,
        kv_cache_dtype_bytes=KV_CACHE_DTYPE_BYTES.get(engine.kv_cache_dtype, model.dtype_bytes),
        language_model_only=engine.language_model_only,
        enable_prefix_caching=_given(engine.enable_prefix_caching, True),
        enable_chunked_prefill=splits_prompts,
        scheduling_policy=engine.scheduling_policy,
        async_scheduling=not on_cpu and _given(engine.async_scheduling, _async_by_default(engine, release)),
        long_prefill_token_threshold=engine.long_prefill_token_threshold,
        long_prefill_token_threshold_adaptive=engine.long_prefill_token_threshold_adaptive,
        scheduler_reserve_full_isl=_given(engine.scheduler_reserve_full_isl, release.full_isl_gate),
        watermark=engine.watermark,
        enforce_eager=engine.enforce_eager,
        cudagraph_mode=mode,
        cudagraph_capture_sizes=_capture_sizes(engine, model, gpu, release, batch) if mode != "NONE" else (),
        rules=release.rules,
        subtracts_graph_memory=release.subtracts_graph_memory,
        counts_tokens_of_requests=release.counts_tokens_of_requests,
    )


def _given(value: T | None, default: T) -> T:
    return default if value is None else value


def _check_known(engine: EngineConfig, version: str) -> None:
    given = engine.given
    for name, since in unknown_arguments(version).items():
        if name in given:
            raise ConfigError(
                f"{name} is unknown to vLLM {version}, it exists since {since}: leave it out or choose a newer vllm_version."
            )
    if engine.scheduling_policy == "priority" and parse_version(version) < parse_version(PRIORITY_SINCE):
        raise ConfigError(
            f"scheduling_policy priority is unknown to the V1 engine of vLLM {version}, it exists since {PRIORITY_SINCE}: "
            "use fcfs or choose a newer vllm_version."
        )


def _check_tensor_parallel(size: int, model: ModelSpec) -> None:
    if not _splits_heads(size, model):
        raise ConfigError(
            f"tensor_parallel_size must share out the {model.num_attention_heads} attention heads of {model.name} "
            f"and its KV heads evenly, got {size}; "
            f"use one of {', '.join(str(fitting) for fitting in range(1, 33) if _splits_heads(fitting, model))}."
        )


def _splits_heads(size: int, model: ModelSpec) -> bool:
    """Attention heads are sharded whole; KV heads are sharded evenly or repeated a whole number of times."""
    kv_heads = [
        layer.attention.num_kv_heads for layer in model.distinct_layers if layer.attention.kind not in {"mla", "linear"}
    ]
    return model.num_attention_heads % size == 0 and all(max(n, size) % min(n, size) == 0 for n in kv_heads)


def _check_pipeline_parallel(engine: EngineConfig, model: ModelSpec, release: Release) -> None:
    stages = engine.pipeline_parallel_size
    if stages > model.num_layers:
        raise ConfigError(
            f"pipeline_parallel_size must not exceed the {model.num_layers} layers of {model.name}, got {stages}; lower it."
        )
    if stages > 1 and engine.async_scheduling and not release.async_with_pipeline:
        raise ConfigError(
            f"async_scheduling does not work with pipeline_parallel_size {stages} in vLLM {release.version}, "
            "but does from 0.15.0 to 0.30.0 and from 0.33.0 on; leave one of them out or choose another vllm_version."
        )


def _async_by_default(engine: EngineConfig, release: Release) -> bool:
    return release.async_scheduling and (engine.pipeline_parallel_size == 1 or release.async_with_pipeline)


def _max_model_len(engine: EngineConfig, model: ModelSpec) -> int | None:
    """None while "auto" waits for the memory plan."""
    if engine.max_model_len == "auto":
        return None
    if engine.max_model_len is not None and engine.max_model_len > model.max_model_len:
        raise ConfigError(
            f"max_model_len must not exceed the {model.max_model_len} tokens that the config of {model.name} allows, "
            f"got {engine.max_model_len}; lower it, or raise max_position_embeddings (with rope scaling) in a config.json of your own."
        )
    return _given(engine.max_model_len, model.max_model_len)


class _Batch(NamedTuple):
    tokens: int
    seqs: int


def _batch_defaults(gpu: HardwareProfile, release: Release, usage: UsageContext, num_gpus: int) -> _Batch:
    """The tiers of vLLM: by platform, memory and name of the GPU, and by who starts the engine."""
    if gpu.architecture == "CPU":
        server, offline, seqs = 2048 * num_gpus, 4096 * num_gpus, 128 * num_gpus
        return _Batch(offline, 2 * seqs) if usage == "offline" else _Batch(server, seqs)
    if release.huge_gpu_tier and gpu.memory_bytes >= 160 * GIB:
        return _Batch(16384, 1024)
    if gpu.memory_bytes >= 70 * GIB and (release.a100_is_large or "a100" not in gpu.name.lower()):
        return _Batch(16384 if usage == "offline" else 8192, 1024)
    return _Batch(8192 if usage == "offline" else 2048, 256)


def _batch_limits(
    engine: EngineConfig, release: Release, max_model_len: int, defaults: _Batch, *, splits_prompts: bool
) -> _Batch:
    """max_num_batched_tokens and max_num_seqs: given values are kept, the others adapt to them."""
    factor = 2 if engine.performance_mode == "throughput" else 1
    seqs = _given(engine.max_num_seqs, defaults.seqs * factor)
    tokens = engine.max_num_batched_tokens
    if tokens is None:
        tokens = defaults.tokens * factor
        if release.fits_token_budget:
            least = 0 if splits_prompts else max_model_len
            tokens = min(max(tokens, least), seqs * max_model_len)
    if engine.max_num_seqs is None and release.lowers_max_num_seqs:
        seqs = min(seqs, tokens)
    _check_batch(engine, max_model_len, _Batch(tokens, seqs), splits_prompts=splits_prompts)
    return _Batch(tokens, seqs)


def _check_batch(engine: EngineConfig, max_model_len: int, batch: _Batch, *, splits_prompts: bool) -> None:
    tokens, seqs = batch
    if seqs > tokens:
        raise ConfigError(
            f"max_num_seqs must not exceed max_num_batched_tokens, got {seqs} and {tokens}; lower the one or raise the other."
        )
    if not splits_prompts and tokens < max_model_len:
        raise ConfigError(
            f"max_num_batched_tokens must be at least max_model_len ({max_model_len}) without chunked prefill, got {tokens}; "
            "raise it, lower max_model_len or enable chunked prefill."
        )
    if (engine.max_num_active_seqs or 0) > seqs:
        raise ConfigError(
            f"max_num_active_seqs must not exceed max_num_seqs ({seqs}), got {engine.max_num_active_seqs}."
        )
    if (engine.max_num_scheduled_tokens or 0) > tokens:
        raise ConfigError(
            f"max_num_scheduled_tokens must not exceed max_num_batched_tokens ({tokens}), got {engine.max_num_scheduled_tokens}."
        )


def _default_block_size(model: ModelSpec, *, on_cpu: bool) -> int:
    is_mla = any(layer.attention.kind == "mla" for layer in model.layers)
    return 128 if on_cpu and not is_mla else 16


def _cudagraph_mode(engine: EngineConfig, release: Release, *, on_cpu: bool) -> CudagraphMode:
    if engine.enforce_eager or on_cpu:
        return "NONE"
    return engine.cudagraph_mode or release.cudagraph_mode


def _capture_sizes(
    engine: EngineConfig, model: ModelSpec, gpu: HardwareProfile, release: Release, batch: _Batch
) -> tuple[int, ...]:
    if engine.cudagraph_capture_sizes is not None:
        return _given_capture_sizes(engine.cudagraph_capture_sizes, engine.max_cudagraph_capture_size, batch.tokens)
    limits = {"max_num_seqs": batch.seqs, "max_num_batched_tokens": batch.tokens}
    interactivity = engine.performance_mode == "interactivity"
    if engine.max_cudagraph_capture_size is not None:
        return listed_sizes(release.capture, engine.max_cudagraph_capture_size, interactivity=interactivity, **limits)
    return default_sizes(
        release.capture,
        compute_capability=gpu.compute_capability,
        architecture=model.architecture,
        interactivity=interactivity,
        **limits,
    )


def _given_capture_sizes(given: tuple[int, ...], largest: int | None, max_num_batched_tokens: int) -> tuple[int, ...]:
    sizes = tuple(size for size in given if size <= max_num_batched_tokens)
    if not sizes:
        raise ConfigError(
            f"cudagraph_capture_sizes must hold a size of at most max_num_batched_tokens ({max_num_batched_tokens}), "
            f"got {given[0]} and up; add a smaller one or use enforce_eager."
        )
    if largest is not None and largest != sizes[-1]:
        raise ConfigError(
            f"max_cudagraph_capture_size must equal the largest of cudagraph_capture_sizes ({sizes[-1]}), got {largest}; "
            "give only one of the two."
        )
    return sizes
