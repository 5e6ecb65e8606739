"""What-ifs that are not simulated with everything: what each of them refuses beside it."""

from sim.errors import ConfigError
from sim.memory.plan import MemoryPlan
from sim.specs.engine import ResolvedEngine

EVICTS = "prefix_cache_eviction"
SWAPS = "preemption_mode"


def check_what_ifs(engine: ResolvedEngine, plan: MemoryPlan) -> None:
    """Raises ConfigError for layers with windows or states, and for arguments, that do not go with what is asked for."""
    beside = {
        "kv_offloading_size": ((EVICTS, SWAPS), bool(engine.kv_offloading_size)),
        "pipeline_parallel_size": ((SWAPS,), engine.pipeline_parallel_size > 1),
        "batching static": ((SWAPS,), engine.batching == "static"),
        "kv_allocation contiguous": ((SWAPS,), engine.kv_allocation == "contiguous"),
    }
    for name in (EVICTS, SWAPS):
        if name not in engine.what_ifs:
            continue
        asked = f"{name} {engine.what_ifs[name]}"
        if not plan.has_full_attention_alone:
            raise ConfigError(
                f"{asked} is simulated for models whose layers all have full attention, got one with sliding windows or"
                " states; leave it out."
            )
        for other, (refused_by, is_there) in beside.items():
            if name in refused_by and is_there:
                raise ConfigError(f"{asked} is not simulated with {other}; leave one of them out.")
