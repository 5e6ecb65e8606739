"""What to change so that a model fits: each change alone, smallest first, checked by planning again."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from sim.errors import SimError
from sim.memory.design import GraphMemoryModel
from sim.memory.plan import MemoryPlan, plan_memory
from sim.specs.engine import ResolvedEngine
from sim.specs.hardware import HardwareProfile
from sim.specs.model import ModelSpec

HIGHEST_UTILIZATION = 0.97  # beyond, graphs and fragmentation run out of memory while serving
FEWEST_SEQS, FEWEST_TOKENS, SMALLEST_GRAPHS = 16, 512, 8


class Remedy(NamedTuple):
    """One engine argument to set, and the plan that then fits."""

    argument: str
    value: Any
    plan: MemoryPlan


def remedies(
    model: ModelSpec, gpu: HardwareProfile, engine: ResolvedEngine, *, graph_memory: GraphMemoryModel = "measured"
) -> tuple[Remedy, ...]:
    """The smallest value of each argument that makes it fit, least intrusive argument first; empty when it fits already.

    Batch limits come before the context length, that before the cache's precision, and more GPUs last.
    """
    planned = partial(plan_memory, model, gpu, graph_memory=graph_memory)
    plan = planned(engine)
    if plan.feasible:
        return ()
    found = (_first_that_fits(planned, choices) for choices in _choices(model, gpu, engine, plan.longest_model_len))
    return tuple(remedy for remedy in found if remedy)


Change = tuple[str, Any, ResolvedEngine]


def _choices(
    model: ModelSpec, gpu: HardwareProfile, engine: ResolvedEngine, longest: int
) -> Iterator[Iterator[Change]]:
    """For each argument its values, gentlest first."""
    yield from (_utilization(engine), _fewer_seqs(engine), _fewer_tokens(engine), _smaller_graphs(engine))
    yield _shorter_context(engine, longest)
    yield _fp8_cache(engine)
    yield _more_gpus(model, gpu, engine)


def _first_that_fits(planned: Callable[[ResolvedEngine], MemoryPlan], choices: Iterator[Change]) -> Remedy | None:
    for argument, value, changed in choices:
        try:
            plan = planned(changed)
        except SimError:  # pages that cannot be made one size at that TP
            continue
        if plan.feasible:
            return Remedy(argument, value, plan)
    return None


def _utilization(engine: ResolvedEngine) -> Iterator[Change]:
    percent = int(100 * engine.gpu_memory_utilization + 1)
    for value in range(percent, round(100 * HIGHEST_UTILIZATION) + 1):
        yield "gpu_memory_utilization", value / 100, replace(engine, gpu_memory_utilization=value / 100)


def _fewer_seqs(engine: ResolvedEngine) -> Iterator[Change]:
    """Captured sizes end at twice max_num_seqs, as they do by default."""
    for value in _halves(engine.max_num_seqs, FEWEST_SEQS):
        sizes = tuple(size for size in engine.cudagraph_capture_sizes if size <= 2 * value)
        yield "max_num_seqs", value, replace(engine, max_num_seqs=value, cudagraph_capture_sizes=sizes)


def _fewer_tokens(engine: ResolvedEngine) -> Iterator[Change]:
    for value in _halves(engine.max_num_batched_tokens, max(FEWEST_TOKENS, engine.max_num_seqs)):
        yield "max_num_batched_tokens", value, replace(engine, max_num_batched_tokens=value)


def _smaller_graphs(engine: ResolvedEngine) -> Iterator[Change]:
    """Helps where what is set aside for graphs reduces the KV cache."""
    for value in _halves(max(engine.cudagraph_capture_sizes, default=0), SMALLEST_GRAPHS):
        sizes = tuple(size for size in engine.cudagraph_capture_sizes if size <= value)
        yield "max_cudagraph_capture_size", value, replace(engine, cudagraph_capture_sizes=sizes)


def _halves(value: int, least: int) -> Iterator[int]:
    while (value := value // 2) >= least:
        yield value


def _shorter_context(engine: ResolvedEngine, longest: int) -> Iterator[Change]:
    if longest > 1:
        yield "max_model_len", longest, replace(engine, max_model_len=longest)


def _fp8_cache(engine: ResolvedEngine) -> Iterator[Change]:
    if engine.kv_cache_dtype_bytes > 1:
        yield "kv_cache_dtype", "fp8", replace(engine, kv_cache_dtype="fp8", kv_cache_dtype_bytes=1)


def _more_gpus(model: ModelSpec, gpu: HardwareProfile, engine: ResolvedEngine) -> Iterator[Change]:
    value = 2 * engine.tensor_parallel_size
    while value * engine.pipeline_parallel_size <= gpu.num_linked_gpus and model.num_attention_heads % value == 0:
        yield "tensor_parallel_size", value, replace(engine, tensor_parallel_size=value)
        value *= 2
