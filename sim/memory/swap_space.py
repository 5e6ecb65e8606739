"""A what-if: host memory for the KV of preempted requests, as vLLM's engine before V1 had it (`--swap-space`, GiB a GPU).

Each GPU copies its own share of the heads over its own PCIe link. Deliberate difference: a copy costs nothing but its bytes, where
that engine copied block by block and layer by layer.
"""

from dataclasses import dataclass

from sim.errors import ConfigError
from sim.memory.plan import MemoryPlan
from sim.memory.transfers import ReplicaKV, copied_bytes_per_s
from sim.specs.engine import ResolvedEngine
from sim.specs.hardware import HardwareProfile
from sim.units import GIB


@dataclass(frozen=True, slots=True)
class SwapSpace:
    """Room for so many KV blocks, how long one takes to copy, either way, and its bytes on all GPUs."""

    num_blocks: int
    block_copy_s: float
    block_bytes: int = 0


def swap_space(engine: ResolvedEngine, plan: MemoryPlan, gpu: HardwareProfile) -> SwapSpace | None:
    """None where preempted requests are recomputed. Raises ConfigError where no block fits."""
    if engine.preemption_mode == "recompute":
        return None
    block_bytes = ReplicaKV(plan.kv_groups, 1).bytes_per_block
    num_blocks = int(engine.swap_space * GIB) // block_bytes
    if num_blocks < 1:
        raise ConfigError(
            f"swap_space {engine.swap_space:g} GiB holds no KV block, which has {block_bytes / GIB:.3g} GiB a GPU; raise it."
        )
    return SwapSpace(num_blocks, block_bytes / copied_bytes_per_s(gpu), block_bytes * engine.num_gpus)
