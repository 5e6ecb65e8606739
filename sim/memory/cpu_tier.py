"""A CPU tier behind the KV cache: how many blocks of host memory it has, and how long a block takes to copy.

Mirrors `--kv-offloading-size` with vLLM's own backend (v1/kv_offload/cpu, 0.32): the size is that of all GPUs together, and each
GPU copies its own share of the heads over its own PCIe link. Deliberate differences: a chunk is one block, sizes are not aligned
to pages, and a copy costs nothing but its bytes.
"""

from sim.errors import ConfigError
from sim.memory.plan import MemoryPlan
from sim.memory.transfers import ReplicaKV, copied_bytes_per_s
from sim.specs.engine import ResolvedEngine
from sim.specs.hardware import HardwareProfile
from sim.specs.kv_transfer import OffloadConfig
from sim.units import GIB


def cpu_tier(engine: ResolvedEngine, plan: MemoryPlan, gpu: HardwareProfile) -> OffloadConfig | None:
    """None where no host memory is asked for. Raises ConfigError for what is not simulated, and where no block fits.

    What has been copied is told right after the next batch is launched, as vLLM's worker does.
    """
    size_gib = engine.kv_offloading_size
    if not size_gib:
        return None
    _check_windows(engine, plan)
    block_bytes = ReplicaKV(plan.kv_groups, engine.num_gpus).bytes_per_block
    num_blocks = int(size_gib * GIB) // block_bytes
    if num_blocks < 1:
        raise ConfigError(
            f"kv_offloading_size {size_gib:g} GiB holds no KV block, which has {block_bytes / GIB:.3g} GiB; raise it."
        )
    copy_s = block_bytes / engine.num_gpus / copied_bytes_per_s(gpu)
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


def _check_windows(engine: ResolvedEngine, plan: MemoryPlan) -> None:
    """What is simulated where not all layers have full attention."""
    if plan.has_full_attention_alone:
        return
    if any(group.kind == "linear" for group in plan.kv_groups):
        raise ConfigError("kv_offloading_size is not simulated for models whose layers keep states; leave it out.")
    beside = {
        "enable_prefix_caching off": not engine.enable_prefix_caching,
        "speculative_config": engine.speculation is not None,
    }
    for name, is_there in beside.items():
        if is_there:
            raise ConfigError(
                f"kv_offloading_size is not simulated with {name} for models with sliding windows; leave one of them out."
            )
