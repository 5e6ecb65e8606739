"""Layer-wise offload as a deployment: one request at a time, its KV cache in CPU memory. After nano-vllm; vLLM has no such mode."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sim.deployment import Deployment, GpuLike, ModelLike, as_gpu, as_model, deploy
from sim.errors import ConfigError, DoesNotFitError
from sim.memory.layerwise_offload import LayerwisePlan, LayerwiseSettings, layerwise_plan, layerwise_widths
from sim.memory.ledger import Line
from sim.memory.plan import MemoryPlan
from sim.specs.engine import EngineConfig
from sim.steptime.layerwise import HostKV
from sim.steptime.options import DEFAULT_STEP_TIMES, StepTimeOptions
from sim.units import GIB

DECIDED = {
    "max_num_seqs": 1,
    "enforce_eager": True,
    "enable_prefix_caching": False,
    "block_size": 16,
}
"""What the mode is: engine arguments that nobody else may give."""
NOTE = "layer-wise offload serves one request at a time as nano-vllm does; vLLM has no such mode, and it was never measured"


def deploy_layerwise(
    model: ModelLike,
    gpu: GpuLike,
    engine: EngineConfig,
    given: Mapping[str, Any],
    *,
    vllm_version: str | None = None,
    step_times: StepTimeOptions = DEFAULT_STEP_TIMES,
) -> Deployment:
    """A deployment whose buffers are cut as `given` says: the fields of LayerwiseSettings but for the length, which is `max_model_len`.

    Raises ConfigError for arguments that the mode decides on, and for a model or layout that it does not take.
    """
    if step_times.given is not None:
        raise ConfigError("layer-wise offload is timed by the roofline and the link; leave the step-time model out.")
    spec, profile = as_model(model, engine), as_gpu(gpu)
    settings = LayerwiseSettings(_length(engine, spec.max_model_len), **given)
    deployed = deploy(spec, profile, _decided(engine, settings), vllm_version=vllm_version, step_times=step_times)
    if deployed.engine.num_gpus > 1:
        raise ConfigError(f"layer-wise offload is for one GPU, got {deployed.engine.num_gpus}; leave -tp and -pp out.")
    widths = layerwise_widths(spec)
    plan = layerwise_plan(widths, settings, spec.weight_bytes())
    available = deployed.plan.requested_bytes
    if plan.gpu_bytes > available:
        raise DoesNotFitError(
            f"{deployed} does not hold {settings.seq_len:,} tokens: layer-wise offload needs {plan.gpu_bytes / GIB:.2f} GiB at its peak, "
            f"more than the {available / GIB:.2f} GiB that gpu_memory_utilization allows; fewer buffers, `savings` or a shorter "
            "max_model_len take less."
        )
    kv = HostKV(widths.num_layers, 2 * widths.kv_dim * widths.dtype_size, settings.num_kv_buffers)
    return replace(deployed, plan=_as_memory_plan(deployed.plan, plan), notes=(*deployed.notes, NOTE), host_kv=kv)


def _length(engine: EngineConfig, longest: int) -> int:
    """Tokens of the longest request. Raises ConfigError where vLLM would choose them by memory, which the mode does not."""
    if engine.max_model_len == "auto":
        raise ConfigError("layer-wise offload needs the length of its longest request: give max_model_len a number.")
    return engine.max_model_len or longest


def _decided(engine: EngineConfig, settings: LayerwiseSettings) -> EngineConfig:
    """The arguments of an engine that computes a prompt in one step, and has blocks for what is pinned."""
    num_blocks = settings.pinned_blocks * settings.block_size // DECIDED["block_size"] + 1  # and the null block
    decided: dict[str, Any] = {
        **DECIDED,
        "max_num_batched_tokens": settings.seq_len,
        "num_gpu_blocks_override": num_blocks,
    }
    for name in decided:
        if name in engine.given:
            raise ConfigError(
                f"{name} is decided by layer-wise offload, which serves one request at a time; leave it out."
            )
    return replace(engine, max_model_len=settings.seq_len, **decided)


def _as_memory_plan(vllm: MemoryPlan, plan: LayerwisePlan) -> MemoryPlan:
    """The plan in the place of vLLM's, which knows nothing of rings."""
    parts = {
        "loaded": (plan.rotary_table, *plan.preallocated),
        "prefill": (*plan.prefill_persistent, *plan.prefill_temporaries),
    }
    return replace(
        vllm,
        weights_bytes=plan.weights_bytes,
        activation_bytes=plan.prefill_bytes - plan.weights_bytes - plan.preallocated_bytes,
        non_torch_bytes=0,
        cuda_graph_bytes=0,
        cuda_graph_estimate_bytes=0,
        available_kv_cache_bytes=plan.preallocated_bytes,
        kv_cache_bytes=plan.preallocated_bytes,
        reason=None,
        ledger=tuple(
            Line(group, part.name, part.num_bytes, part.formula, "nano-vllm")
            for group, of in parts.items()
            for part in of
        ),
    )
