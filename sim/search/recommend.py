"""Advice in words, each with the figure behind it."""

from collections.abc import Iterator
from typing import NamedTuple

from sim.memory.plan import MemoryPlan
from sim.search.evaluate import Outcome
from sim.search.goals import Target, excess
from sim.specs.autotuning import AutotuningParameters
from sim.specs.engine import ResolvedEngine
from sim.units import GIB

HIGH_KV_USAGE = 0.95
HIGH_UTILIZATION = 0.95
LOW_BUSY = 0.6
NARROW_MARGIN = 0.1
MANY_WAIT = 0.05


class Facts(NamedTuple):
    """The winner: as started, as replayed on the whole trace."""

    engine: ResolvedEngine
    plan: MemoryPlan
    outcome: Outcome
    target: Target
    robustness: float
    parameters: AutotuningParameters


def recommendations(facts: Facts) -> tuple[str, ...]:
    """What to watch and what to try next; empty where nothing stands out."""
    return tuple(
        sentence for advise in (_graphs, _kv_cache, _memory, _queues, _load, _limits) for sentence in advise(facts)
    )


def _graphs(facts: Facts) -> Iterator[str]:
    coverage = facts.outcome.metrics["cudagraph_step_fraction"]
    if facts.engine.cudagraph_capture_sizes and coverage is not None and coverage < facts.parameters.low_graph_coverage:
        largest = facts.engine.cudagraph_capture_sizes[-1]
        yield (
            f"Low CUDA graph coverage: {coverage:.0%} of steps replay a graph; capture larger sizes than {largest}, "
            "for your batches exceed it."
        )
    sizes, seqs = facts.engine.cudagraph_capture_sizes, facts.engine.max_num_seqs
    has_decode_graphs = facts.engine.cudagraph_mode.startswith("FULL_")
    if has_decode_graphs and sizes and seqs <= sizes[-1] and seqs not in sizes:
        fitting = [size for size in sizes if size <= seqs]
        below = fitting[-1] if fitting else 0
        yield (
            f"max_num_seqs={seqs} is no captured size: batches of {below + 1} to {seqs} miss the full graph; "
            f"add {seqs} to cudagraph_capture_sizes."
        )


def _kv_cache(facts: Facts) -> Iterator[str]:
    metrics, plan = facts.outcome.metrics, facts.plan
    share = plan.kv_cache_bytes / plan.total_bytes
    if share < facts.parameters.low_kv_cache_ratio:
        yield (
            f"The KV cache has {share:.0%} of the GPU's memory ({plan.kv_cache_bytes / GIB:.1f} GiB); fewer capture sizes, "
            "an fp8 cache or more GPUs would give it more."
        )
    if metrics["num_preemptions"]:
        yield (
            f"{metrics['num_preemptions']:,} preemptions: the KV cache runs full and requests are computed twice; "
            "lower max_num_seqs or give the cache more room."
        )
    elif (metrics["max_kv_cache_usage"] or 0.0) > HIGH_KV_USAGE:
        yield f"The KV cache fills up to {metrics['max_kv_cache_usage']:.0%}: a little more load and requests are preempted."


def _memory(facts: Facts) -> Iterator[str]:
    utilization = facts.engine.gpu_memory_utilization
    if utilization >= HIGH_UTILIZATION and facts.engine.kv_cache_memory_bytes is None:
        left = facts.plan.total_bytes - facts.plan.requested_bytes
        yield (
            f"gpu_memory_utilization={utilization:g} leaves {left / GIB:.1f} GiB for fragmentation and whatever else uses "
            "the GPU; check that the server starts."
        )


def _queues(facts: Facts) -> Iterator[str]:
    queued = facts.outcome.limits.queued if facts.outcome.limits else {}
    advice = {
        "token_budget": f"raise max_num_batched_tokens above {facts.engine.max_num_batched_tokens:,}",
        "max_num_seqs": f"raise max_num_seqs above {facts.engine.max_num_seqs:,}",
        "kv_space": "give the KV cache more room, or add replicas",
    }
    for cause, remedy in advice.items():
        if queued.get(cause, 0.0) > MANY_WAIT:
            yield f"Requests wait {queued[cause]:.0%} of the time for {cause.replace('_', ' ')}; {remedy}, if latency matters."


def _load(facts: Facts) -> Iterator[str]:
    busy = facts.outcome.metrics["gpu_busy_fraction"]
    if busy is not None and busy < LOW_BUSY:
        yield (
            f"The GPU is busy {busy:.0%} of the time: the trace, not the engine, limits throughput; "
            "`servecast capacity` tells the highest rate, `--rate-scale` replays a higher one."
        )


def _limits(facts: Facts) -> Iterator[str]:
    for slo in facts.target.limits:
        value = facts.outcome.metrics.get(slo.judged_key)
        if value is None or excess(slo, facts.outcome.metrics):
            continue
        margin = 1 - value / slo.limit_ms
        if margin < NARROW_MARGIN:
            yield f"{slo.name} is {value:,.1f} ms, {margin:.0%} below its limit: closer than step times are known."
    if facts.target.limits and facts.robustness < 1:
        yield (
            f"All limits were kept in {facts.robustness:.0%} of the replays on other slices and with step times 10 % off; "
            "measure before you rely on it."
        )
