"""The memory plan: the uses of each GPU's memory, and the number of KV blocks that remain.

Mirrors what vLLM works out at start-up, from 0.11 on. Deliberate difference: one GPU stands for all of its pipeline stage.
"""

from dataclasses import dataclass
from typing import NamedTuple

from sim.memory.design import GraphMemoryModel
from sim.memory.kv_cache import KVCacheLayout, KVGroup, kv_cache_layout
from sim.memory.ledger import Line, ledger_lines
from sim.memory.loading import text_only
from sim.memory.profiling import Consumption, consumption
from sim.specs.drafters import Drafter
from sim.specs.engine import ResolvedEngine
from sim.specs.hardware import HardwareProfile
from sim.specs.model import ModelSpec
from sim.specs.stages import Stage, stages_of
from sim.units import GIB


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Frozen facts, all bytes per GPU; `reason` says why vLLM would refuse to start, None if it would start.

    `available_kv_cache_bytes` is what vLLM logs, `kv_cache_bytes` what the blocks take of it. `cuda_graph_bytes` is
    what graphs take, `cuda_graph_estimate_bytes` what vLLM subtracts for them (0 before 0.20). `kv_cache_tokens` is the
    cache size that vLLM logs, `longest_model_len` the longest request that it can hold.
    """

    num_parameters: int
    stage: Stage
    total_bytes: int
    requested_bytes: int
    weights_bytes: int
    activation_bytes: int
    non_torch_bytes: int
    cuda_graph_bytes: int
    cuda_graph_estimate_bytes: int
    available_kv_cache_bytes: int
    kv_cache_bytes: int
    num_gpu_blocks: int
    block_size: int
    kv_groups: tuple[KVGroup, ...]
    max_model_len: int
    longest_model_len: int
    kv_cache_tokens: int
    max_concurrency: float
    reason: str | None
    ledger: tuple[Line, ...]

    @property
    def feasible(self) -> bool:
        return self.reason is None

    @property
    def has_full_attention_alone(self) -> bool:
        """Whether every layer looks at all tokens: no windows, no states."""
        return len(self.kv_groups) == 1 and self.kv_groups[0].window is None and self.kv_groups[0].kind != "linear"

    def to_json(self) -> dict[str, object]:
        """The object of `servecast memory --json`."""
        names = (
            "num_parameters", "total_bytes", "requested_bytes", "weights_bytes", "activation_bytes", "non_torch_bytes",
            "cuda_graph_bytes", "cuda_graph_estimate_bytes", "available_kv_cache_bytes", "kv_cache_bytes",
            "num_gpu_blocks", "block_size", "max_model_len", "kv_cache_tokens", "max_concurrency", "feasible", "reason",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names} | {"pipeline_stage": self.stage.rank}


def plan_memory(
    model: ModelSpec,
    gpu: HardwareProfile,
    engine: ResolvedEngine,
    *,
    graph_memory: GraphMemoryModel = "measured",
    drafter: Drafter | None = None,
) -> MemoryPlan:
    """What vLLM would find and allocate on each GPU; a plan that does not fit says so in `reason`.

    Of several pipeline stages, it describes the one that leaves room for the fewest blocks. Raises ConfigError when the
    pages of the model's layers cannot be made one size.
    """
    if engine.language_model_only:
        model = text_only(model)
    stages = stages_of(model, engine)
    candidates = [_candidate(model, gpu, engine, stage, graph_memory, drafter) for stage in stages]
    return _plan(
        model, engine, min(candidates, key=lambda candidate: (candidate.num_blocks, candidate.used.left_bytes))
    )


class _Candidate(NamedTuple):
    """The plan of one stage's GPUs."""

    used: Consumption
    layout: KVCacheLayout
    available_bytes: int
    num_blocks: int


def _candidate(
    model: ModelSpec,
    gpu: HardwareProfile,
    engine: ResolvedEngine,
    stage: Stage,
    graph_memory: GraphMemoryModel,
    drafter: Drafter | None,
) -> _Candidate:
    used = consumption(model, gpu, engine, stage, graph_memory, drafter)
    layout = kv_cache_layout(model, engine, stage, drafter=drafter.model if drafter else None)
    available = used.left_bytes if engine.kv_cache_memory_bytes is None else engine.kv_cache_memory_bytes
    return _Candidate(used, layout, available, engine.num_gpu_blocks_override or layout.num_blocks(available))


def _plan(model: ModelSpec, engine: ResolvedEngine, candidate: _Candidate) -> MemoryPlan:
    used, layout, available, num_blocks = candidate
    longest = layout.longest_request(num_blocks, engine.max_model_len or model.max_model_len)
    max_model_len = engine.max_model_len or longest
    concurrency = layout.max_concurrency(num_blocks, max_model_len) if max_model_len else 0.0
    return MemoryPlan(
        num_parameters=model.num_parameters,
        stage=used.stage,
        total_bytes=used.total_bytes,
        requested_bytes=used.requested_bytes,
        weights_bytes=used.weights_bytes,
        activation_bytes=used.activation.total_bytes,
        non_torch_bytes=used.non_torch_bytes,
        cuda_graph_bytes=used.graphs.taken_bytes,
        cuda_graph_estimate_bytes=used.graphs.subtracted_bytes,
        available_kv_cache_bytes=available,
        kv_cache_bytes=num_blocks * layout.bytes_per_block,
        num_gpu_blocks=num_blocks,
        block_size=layout.block_size,
        kv_groups=layout.groups,
        max_model_len=max_model_len,
        longest_model_len=longest,
        kv_cache_tokens=_logged_tokens(layout, engine, num_blocks, concurrency * max_model_len),
        max_concurrency=concurrency,
        reason=_refusal(used, layout, engine, num_blocks, longest, max_model_len),
        ledger=ledger_lines(model, engine, used, layout, num_blocks),
    )


def _logged_tokens(layout: KVCacheLayout, engine: ResolvedEngine, num_blocks: int, tokens_at_once: float) -> int:
    """What vLLM logs as cache size: since 0.20.1 the tokens of requests at full length, before those of one group's share.

    The two differ for hybrid models only; start-up logs of 0.19 and 0.22 show the one and the other.
    """
    if engine.counts_tokens_of_requests:
        return int(tokens_at_once)
    return num_blocks // len(layout.groups) * layout.block_size


def _refusal(
    used: Consumption, layout: KVCacheLayout, engine: ResolvedEngine, num_blocks: int, longest: int, max_model_len: int
) -> str | None:
    """Why vLLM would not start, in the order in which it finds out."""
    if used.left_bytes <= 0 and engine.kv_cache_memory_bytes is None:
        return _no_room(used, engine)
    if not longest:
        return _no_block(used, layout, num_blocks)
    if longest < max_model_len:
        return _too_short(layout, num_blocks, longest, max_model_len)
    in_use = used.used_bytes - used.graphs.subtracted_bytes + num_blocks * layout.bytes_per_block
    if in_use > used.total_bytes:
        return (
            f"{num_blocks:,} KV blocks with weights, activations and overhead need {_gib(in_use)} per GPU, more than the "
            f"{_gib(used.total_bytes)} that it has; lower num_gpu_blocks_override or kv_cache_memory_bytes."
        )
    return None


def _no_room(used: Consumption, engine: ResolvedEngine) -> str:
    return (
        f"weights ({_gib(used.weights_bytes)}), activations ({_gib(used.activation.total_bytes)}) and overhead "
        f"({_gib(used.non_torch_bytes + used.graphs.subtracted_bytes)}) leave nothing for the KV cache of the "
        f"{_gib(used.requested_bytes)} per GPU that gpu_memory_utilization={engine.gpu_memory_utilization:g} allows; "
        "raise it, use more GPUs (tensor_parallel_size) or a quantized model."
    )


def _no_block(used: Consumption, layout: KVCacheLayout, num_blocks: int) -> str:
    return (
        f"the KV cache has {num_blocks} blocks of {_gib(layout.bytes_per_block)}, too few for any request, after "
        f"{_gib(used.used_bytes)} of {_gib(used.requested_bytes)} per GPU are used; raise gpu_memory_utilization or use "
        "more GPUs (tensor_parallel_size)."
    )


def _too_short(layout: KVCacheLayout, num_blocks: int, longest: int, max_model_len: int) -> str:
    needed = layout.blocks_per_request(max_model_len) * layout.bytes_per_block
    usable = max(0, num_blocks - 1) * layout.bytes_per_block
    return (
        f"one request of max_model_len={max_model_len:,} needs {_gib(needed)} of KV cache per GPU, more than the "
        f"{_gib(usable)} there is; lower max_model_len to {longest:,}, raise gpu_memory_utilization or use more GPUs (tensor_parallel_size)."
    )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.2f} GiB"
