"""Scheduler configurations from a few words: what is not said is vLLM 0.32's default, but windows are kept everywhere, as before 0.30."""

from dataclasses import replace
from typing import Any

from sim.engine.config import SchedulerConfig
from sim.specs.arguments import DENSELY
from sim.specs.engine import EngineConfig
from sim.specs.hardware import load_gpu
from sim.specs.models import load_model
from sim.specs.rules import SchedulingRules
from sim.specs.vllm import resolve_engine

PLANNED = ("num_gpu_blocks", "max_model_len", "block_size", "kv_groups", "num_state_blocks", "common_reads")
DEFAULTS = resolve_engine(EngineConfig(), load_model("Llama-3.1-8B"), load_gpu("h100-sxm"), vllm_version="0.32.0")
ROOMY = SchedulerConfig(
    replace(DEFAULTS, rules=SchedulingRules(), prefix_cache_retention_interval=DENSELY),
    num_gpu_blocks=1000,
    max_model_len=1000,
)


def changed(config: SchedulerConfig, **arguments: Any) -> SchedulerConfig:
    """With other engine arguments, or another plan of the cache."""
    planned = {name: arguments.pop(name) for name in PLANNED if name in arguments}
    return replace(config, engine=replace(config.engine, **arguments), **planned)


def scheduler_config(**arguments: Any) -> SchedulerConfig:
    """A model with full attention in blocks of 16 tokens; 1000 blocks and a context of 1000 tokens unless said otherwise."""
    return changed(ROOMY, **arguments)
