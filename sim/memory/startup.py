"""A server as vLLM would start it: arguments resolved, then memory planned."""

from dataclasses import replace
from typing import NamedTuple

from sim.memory.design import GraphMemoryModel
from sim.memory.plan import MemoryPlan, plan_memory
from sim.specs.engine import EngineConfig, ResolvedEngine
from sim.specs.hardware import HardwareProfile
from sim.specs.model import ModelSpec
from sim.specs.vllm import resolve_engine


class Started(NamedTuple):
    """What start-up makes of engine arguments; `engine` has the context length of the plan."""

    engine: ResolvedEngine
    plan: MemoryPlan


def start_up(
    model: ModelSpec,
    gpu: HardwareProfile,
    engine: EngineConfig,
    *,
    vllm_version: str | None = None,
    graph_memory: GraphMemoryModel = "measured",
) -> Started:
    """What `vllm serve` would make of these arguments, whether or not it fits. Raises SimError for what vLLM refuses."""
    resolved = resolve_engine(engine, model, gpu, vllm_version=vllm_version)
    plan = plan_memory(model, gpu, resolved, graph_memory=graph_memory)
    return Started(replace(resolved, max_model_len=plan.max_model_len), plan)
