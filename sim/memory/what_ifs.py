"""What-ifs that are not simulated with everything: what each of them refuses beside it."""

from sim.errors import ConfigError
from sim.memory.plan import MemoryPlan
from sim.specs.engine import EngineConfig, ResolvedEngine

ELSEWHERE = "kv_offloading_size"
REFUSED = {
    "fair_share": (ELSEWHERE, "batching static", "preemption_mode swap"),
    "lfu": (ELSEWHERE,),
    "size_aware": (ELSEWHERE,),
    "swap": (ELSEWHERE, "pipeline_parallel_size", "batching static", "kv_allocation contiguous"),
}
FULL_ATTENTION = ("lfu", "size_aware", "swap")


def check_what_ifs(engine: ResolvedEngine, plan: MemoryPlan) -> None:
    """Raises ConfigError for layers with windows or states, and for arguments, that do not go with what is asked for."""
    is_there = {
        ELSEWHERE: bool(engine.kv_offloading_size),
        "pipeline_parallel_size": engine.pipeline_parallel_size > 1,
        "batching static": engine.batching == "static",
        "kv_allocation contiguous": engine.kv_allocation == "contiguous",
        "preemption_mode swap": engine.preemption_mode == "swap",
    }
    for name, value in engine.what_ifs.items():
        if value in FULL_ATTENTION and not plan.has_full_attention_alone:
            raise ConfigError(
                f"{name} {value} is simulated for models whose layers all have full attention, got one with sliding windows"
                " or states; leave it out."
            )
        for other in REFUSED.get(value, ()):
            if is_there[other]:
                raise ConfigError(f"{name} {value} is not simulated with {other}; leave one of them out.")


def alone_with_their_kv(engine: EngineConfig) -> list[str]:
    """The what-ifs that are simulated for engines to which no KV comes from elsewhere."""
    return [f"{name} {value}" for name, value in engine.what_ifs.items() if ELSEWHERE in REFUSED.get(value, ())]
