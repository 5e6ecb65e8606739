"""How vLLM's start-up fills in and checks the engine arguments, for any version, model and GPU."""

from typing import Any

from sim.errors import ConfigError
from sim.specs.batch_limits import BatchLimits, batch_limits, splits_prompts
from sim.specs.capture_sizes import default_sizes, listed_sizes, rounded_to_drafts
from sim.specs.engine import (
    ARGUMENTS,
    DUAL_BATCH_BACKENDS,
    KV_CACHE_DTYPE_BYTES,
    CudagraphMode,
    EngineConfig,
    ResolvedEngine,
    UsageContext,
)
from sim.specs.hardware import HardwareProfile
from sim.specs.kernels import check_kernels
from sim.specs.model import ModelSpec
from sim.specs.prefill_checkpoints import block_alignment_tokens, writes_checkpoints
from sim.specs.releases import (
    NEWEST,
    PRIORITY_SINCE,
    Release,
    default_of,
    parse_version,
    release_for,
    unknown_arguments,
)
from sim.specs.speculating import goes_with_async, resolve_speculation
from sim.specs.speculation import Speculation
from sim.specs.weight_offload import unknown_params


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
    version, release = vllm_version or NEWEST, release_for(vllm_version)
    _check_known(engine, version)
    _check_tensor_parallel(engine.tensor_parallel_size, model)
    _check_expert_parallel(engine, model)
    _check_pipeline_parallel(engine, model, release)
    _check_dual_batches(engine)
    _check_offload_params(engine, model)
    check_kernels(model, gpu, version)
    on_cpu = gpu.architecture == "CPU"
    context = _max_model_len(engine, model)
    batch = batch_limits(engine, gpu, release, usage, context or model.max_model_len)
    mode = _cudagraph_mode(engine, model, release, on_cpu=on_cpu)
    speculation = resolve_speculation(engine, model, version)
    caches_prefixes = _caches_prefixes(engine, model, release)
    splits = splits_prompts(engine, release)
    _check_states(model, caches_prefixes=caches_prefixes, splits_prompts=splits)
    has_checkpoints = caches_prefixes and writes_checkpoints(model, gpu, release)
    return ResolvedEngine(
        **_as_given(engine, version),
        vllm_version=".".join(map(str, parse_version(version))),
        max_model_len=context,
        max_num_seqs=batch.seqs,
        max_num_batched_tokens=batch.tokens,
        block_size=engine.block_size or _default_block_size(model, on_cpu=on_cpu),
        kv_cache_dtype_bytes=KV_CACHE_DTYPE_BYTES.get(engine.kv_cache_dtype, model.dtype_bytes),
        enable_prefix_caching=caches_prefixes,
        enable_chunked_prefill=splits,
        async_scheduling=_async_scheduling(engine, release, speculation, version, on_cpu=on_cpu),
        cudagraph_mode=mode,
        cudagraph_capture_sizes=_capture_sizes(engine, model, gpu, release, batch, mode, speculation),
        speculation=speculation,
        writes_state_checkpoints=has_checkpoints,
        state_block_alignment_tokens=block_alignment_tokens(model, release, has_checkpoints=has_checkpoints),
        rules=release.rules,
        subtracts_graph_memory=release.subtracts_graph_memory,
        counts_tokens_of_requests=release.counts_tokens_of_requests,
    )


def _as_given(engine: EngineConfig, version: str) -> dict[str, Any]:
    """The arguments in which nothing but the version has a say: as given, else at its default in that version."""
    decided = {name for name in ResolvedEngine.__annotations__ if name in ARGUMENTS and not ARGUMENTS[name].defaults}
    given = {name: getattr(engine, name) for name in ARGUMENTS if name not in decided}
    return {name: default_of(ARGUMENTS[name], version) if value is None else value for name, value in given.items()}


def _caches_prefixes(engine: EngineConfig, model: ModelSpec, release: Release) -> bool:
    """As asked for; else not where layers keep states, before 0.28 (vllm#23716, #50991)."""
    if engine.kv_allocation == "contiguous":
        return False
    if engine.enable_prefix_caching is not None:
        return engine.enable_prefix_caching
    return release.caches_states or not _keeps_states(model)


def _keeps_states(model: ModelSpec) -> bool:
    return any(layer.attention.kind == "linear" for layer in model.distinct_layers)


def _check_states(model: ModelSpec, *, caches_prefixes: bool, splits_prompts: bool) -> None:
    """What vLLM's model_executor/models/config.py asserts before it starts."""
    if caches_prefixes and not splits_prompts and _keeps_states(model):
        raise ConfigError(
            f"enable_prefix_caching cuts prompts where blocks end in {model.name}, whose layers keep states, and vLLM does not start without"
            " enable_chunked_prefill; leave one of them out."
        )


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


def _check_expert_parallel(engine: EngineConfig, model: ModelSpec) -> None:
    """What vLLM's config/model.py verifies of a model before it starts."""
    if engine.enable_expert_parallel and not model.has_experts:
        raise ConfigError(
            f"enable_expert_parallel shares out experts, and {model.name} has none, so that vLLM does not start; leave it out."
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
    partition = engine.pp_layer_partition
    if partition is not None and (len(partition), sum(partition)) != (stages, model.num_layers):
        raise ConfigError(
            f"pp_layer_partition (VLLM_PP_LAYER_PARTITION) must share out the {model.num_layers} layers of {model.name} to"
            f" pipeline_parallel_size {stages} stages, got {sum(partition)} layers for {len(partition)}; correct it, or leave it out."
        )
    if stages > 1 and engine.async_scheduling and not release.async_with_pipeline:
        raise ConfigError(
            f"async_scheduling does not work with pipeline_parallel_size {stages} in vLLM {release.version}, "
            "but does from 0.15.0 on; leave one of them out or choose a newer vllm_version."
        )


def _check_dual_batches(engine: EngineConfig) -> None:
    if engine.enable_dbo and engine.all2all_backend not in DUAL_BATCH_BACKENDS:
        raise ConfigError(
            f"enable_dbo needs all2all_backend {' or '.join(DUAL_BATCH_BACKENDS)}, got {engine.all2all_backend}; choose one of them."
        )


def _check_offload_params(engine: EngineConfig, model: ModelSpec) -> None:
    """vLLM would offload nothing; the names of modules around the matrices are not known here."""
    for name in ("cpu_offload_params", "offload_params"):
        unknown, known = unknown_params(model.distinct_layers, getattr(engine, name))
        if unknown:
            raise ConfigError(
                f"{name} must be parts of names of weights in the layers of {model.name}, got {unknown[0]!r}; there are {', '.join(known)}."
            )


def _async_scheduling(
    engine: EngineConfig, release: Release, speculation: Speculation | None, version: str, *, on_cpu: bool
) -> bool:
    if on_cpu:
        return False
    if not goes_with_async(speculation, version):
        if engine.async_scheduling:
            raise ConfigError(
                f"async_scheduling does not work with the speculative_config in vLLM {version}; leave one of them out, or"
                " choose another method or a newer vllm_version."
            )
        return False
    if engine.async_scheduling is not None:
        return engine.async_scheduling
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
    return engine.max_model_len or model.max_model_len


def _default_block_size(model: ModelSpec, *, on_cpu: bool) -> int:
    is_mla = any(layer.attention.kind == "mla" for layer in model.layers)
    return 128 if on_cpu and not is_mla else 16


def _cudagraph_mode(engine: EngineConfig, model: ModelSpec, release: Release, *, on_cpu: bool) -> CudagraphMode:
    if engine.enforce_eager or on_cpu or _exchanges_without_graphs(engine, model):
        return "NONE"
    return engine.cudagraph_mode or release.cudagraph_mode


def _exchanges_without_graphs(engine: EngineConfig, model: ModelSpec) -> bool:
    """DeepEP's kernels for much at once go with no CUDA graph (config/compilation.py), be experts sliced or whole."""
    return engine.all2all_backend == "deepep_high_throughput" and engine.data_parallel_size > 1 and model.has_experts


def _capture_sizes(
    engine: EngineConfig,
    model: ModelSpec,
    gpu: HardwareProfile,
    release: Release,
    batch: BatchLimits,
    mode: CudagraphMode,
    speculation: Speculation | None,
) -> tuple[int, ...]:
    if mode == "NONE":
        return ()
    query_len = 1 + (speculation.num_speculative_tokens if speculation else 0)
    sizes = _listed_capture_sizes(engine, model, gpu, release, batch, query_len)
    return rounded_to_drafts(release.capture, mode, sizes, query_len)


def _listed_capture_sizes(
    engine: EngineConfig, model: ModelSpec, gpu: HardwareProfile, release: Release, batch: BatchLimits, query_len: int
) -> tuple[int, ...]:
    if engine.cudagraph_capture_sizes is not None:
        return _given_capture_sizes(engine.cudagraph_capture_sizes, engine.max_cudagraph_capture_size, batch.tokens)
    limits = {"max_num_seqs": batch.seqs, "max_num_batched_tokens": batch.tokens, "query_len": query_len}
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
