"""A CPU tier behind the KV cache: how many blocks of host memory it has, and how long a block takes to copy.

Mirrors `--kv-offloading-size` with vLLM's own backend (v1/kv_offload/cpu, 0.33): the size is that of all GPUs together, and each
GPU copies its own share of the heads over its own PCIe link. Of latent attention, of which each GPU has the whole, one copy is kept for all of a machine.
Deliberate differences: a chunk is one block, sizes are not aligned to pages, and a copy costs nothing but its bytes.
"""

from sim.errors import ConfigError
from sim.memory.plan import MemoryPlan
from sim.memory.transfers import ReplicaKV, copied_bytes_per_s
from sim.specs.engine import ResolvedEngine
from sim.specs.hardware import HardwareProfile
from sim.specs.kv_transfer import OffloadConfig
from sim.specs.model import ModelSpec
from sim.specs.releases import parse_version
from sim.units import GIB

HANDS_STATES_OVER_SINCE = "0.29"
"""Before, a block is stored by its place in a request's table, where those of states move."""
KEEPS_LATENTS_ONCE_SINCE = "0.28"
"""vllm#50301; where layers' pages differ, as beside an indexer, since INDEXED_LATENTS_ONCE_SINCE."""
INDEXED_LATENTS_ONCE_SINCE = "0.31"


def cpu_tier(model: ModelSpec, engine: ResolvedEngine, plan: MemoryPlan, gpu: HardwareProfile) -> OffloadConfig | None:
    """None where no host memory is asked for. Raises ConfigError for what is not simulated, and where no block fits.

    What has been copied is told right after the next batch is launched, as vLLM's worker does.
    """
    size_gib = engine.kv_offloading_size
    if not size_gib:
        return None
    _check_layers(engine, plan)
    gpu_bytes = ReplicaKV(plan.kv_groups, 1).bytes_per_block
    block_bytes = gpu_bytes if _keeps_one_copy(model, engine, plan, gpu) else gpu_bytes * engine.num_gpus
    num_blocks = int(size_gib * GIB) // block_bytes
    if num_blocks < 1:
        raise ConfigError(
            f"kv_offloading_size {size_gib:g} GiB holds no KV block, which has {block_bytes / GIB:.3g} GiB; raise it."
        )
    copy_s = gpu_bytes / copied_bytes_per_s(gpu)
    return OffloadConfig(
        cpu_chunks=num_blocks,
        load_base_s=0.0,
        load_block_s=copy_s,
        store_base_s=0.0,
        store_block_s=copy_s,
        eviction_policy=engine.eviction_policy,
        reports_at_start=True,
        block_bytes=block_bytes,
    )


def _keeps_one_copy(model: ModelSpec, engine: ResolvedEngine, plan: MemoryPlan, gpu: HardwareProfile) -> bool:
    """Whether all GPUs have the same KV, which one of them stores and each loads: `replicated_layout` of offloading/config.py."""
    if any(group.kind != "mla" or any(cache.kind != "mla" for cache in group.drafting) for group in plan.kv_groups):
        return False
    if engine.pipeline_parallel_size > 1 or engine.tensor_parallel_size > gpu.gpus_per_node:
        return False
    has_indexers = any(layer.attention.index_head_dim for layer in model.distinct_layers)
    since = INDEXED_LATENTS_ONCE_SINCE if has_indexers else KEEPS_LATENTS_ONCE_SINCE
    return parse_version(engine.vllm_version) >= parse_version(since)


def check_states(what: str, engine: ResolvedEngine, plan: MemoryPlan) -> None:
    """Raises ConfigError where layers keep states that vLLM hands over to nobody who keeps KV elsewhere."""
    if _keeps_states(plan) and parse_version(engine.vllm_version) < parse_version(HANDS_STATES_OVER_SINCE):
        raise ConfigError(
            f"{what} is simulated for models whose layers keep states since vLLM {HANDS_STATES_OVER_SINCE}, got"
            f" {engine.vllm_version}; leave it out, or ask for a newer version."
        )


def _keeps_states(plan: MemoryPlan) -> bool:
    return any(group.kind == "linear" for group in plan.kv_groups)


def _check_layers(engine: ResolvedEngine, plan: MemoryPlan) -> None:
    """What is simulated where not all layers have full attention."""
    if plan.has_full_attention_alone:
        return
    if not engine.enable_prefix_caching:
        what = "states, where vLLM does not start either" if _keeps_states(plan) else "sliding windows"
        raise ConfigError(
            f"kv_offloading_size is not simulated with enable_prefix_caching off for models with {what}; leave one of them out."
        )
    check_states("kv_offloading_size", engine, plan)
    drafts = engine.speculation
    has_windows = any(group.window is not None for group in plan.kv_groups)
    if has_windows and drafts is not None and drafts.doubts_last_block:
        raise ConfigError(
            f"kv_offloading_size is not simulated with speculative_config of method {drafts.method} for models with sliding windows, whose"
            " drafter has the last block of a hit computed again; leave one of them out, or draft by ngram or a draft_model."
        )
