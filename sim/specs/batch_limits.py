"""How many tokens and requests vLLM takes into a batch, as its start-up fills these limits in and checks them."""

from typing import NamedTuple

from sim.errors import ConfigError
from sim.specs.engine import EngineConfig, UsageContext
from sim.specs.hardware import HardwareProfile
from sim.specs.releases import Release
from sim.units import GIB


class BatchLimits(NamedTuple):
    """vLLM's max_num_batched_tokens and max_num_seqs."""

    tokens: int
    seqs: int


def splits_prompts(engine: EngineConfig, release: Release) -> bool:
    """Chunked prefill: on by default, and in old versions whatever is asked for."""
    return release.forces_chunked_prefill or engine.enable_chunked_prefill is not False


def batch_limits(
    engine: EngineConfig, gpu: HardwareProfile, release: Release, usage: UsageContext, max_model_len: int
) -> BatchLimits:
    """Given values are kept, the others adapt to them. Raises ConfigError for limits that contradict each other."""
    defaults, factor = (
        _defaults(gpu, release, usage, engine.num_gpus),
        2 if engine.performance_mode == "throughput" else 1,
    )
    seqs, tokens = engine.max_num_seqs or defaults.seqs * factor, engine.max_num_batched_tokens
    whole_prompt = 0 if splits_prompts(engine, release) else max_model_len
    if tokens is None:
        tokens = defaults.tokens * factor
        if release.fits_token_budget:
            tokens = min(max(tokens, whole_prompt), seqs * max_model_len)
    if engine.max_num_seqs is None and release.lowers_max_num_seqs:
        seqs = min(seqs, tokens)
    _check(engine, tokens, seqs, whole_prompt)
    return BatchLimits(tokens, seqs)


def _defaults(gpu: HardwareProfile, release: Release, usage: UsageContext, num_gpus: int) -> BatchLimits:
    """The tiers of vLLM: by platform, memory and name of the GPU, and by who starts the engine."""
    if gpu.architecture == "CPU":
        server, offline, seqs = 2048 * num_gpus, 4096 * num_gpus, 128 * num_gpus
        return BatchLimits(offline, 2 * seqs) if usage == "offline" else BatchLimits(server, seqs)
    if release.huge_gpu_tier and gpu.memory_bytes >= 160 * GIB:
        return BatchLimits(16384, 1024)
    if gpu.memory_bytes >= 70 * GIB and (release.a100_is_large or "a100" not in gpu.name.lower()):
        return BatchLimits(16384 if usage == "offline" else 8192, 1024)
    return BatchLimits(8192 if usage == "offline" else 2048, 256)


def _check(engine: EngineConfig, tokens: int, seqs: int, whole_prompt: int) -> None:
    if seqs > tokens:
        raise ConfigError(
            f"max_num_seqs must not exceed max_num_batched_tokens, got {seqs} and {tokens}; lower the one or raise the other."
        )
    if tokens < whole_prompt:
        raise ConfigError(
            f"max_num_batched_tokens must be at least max_model_len ({whole_prompt}) without chunked prefill, got {tokens}; "
            "raise it, lower max_model_len or enable chunked prefill."
        )
    if (engine.max_num_active_seqs or 0) > seqs:
        raise ConfigError(
            f"max_num_active_seqs must not exceed max_num_seqs ({seqs}), got {engine.max_num_active_seqs}."
        )
    if 0 < (engine.max_num_scheduled_tokens or 0) < whole_prompt:
        raise ConfigError(
            f"max_num_scheduled_tokens must be at least max_model_len ({whole_prompt}) without chunked prefill, got"
            f" {engine.max_num_scheduled_tokens}, as longer prompts would wait for ever; raise it, lower max_model_len or enable chunked prefill."
        )
    if (engine.max_num_scheduled_tokens or 0) > tokens:
        raise ConfigError(
            f"max_num_scheduled_tokens must not exceed max_num_batched_tokens ({tokens}), got {engine.max_num_scheduled_tokens}."
        )
