"""Small scenarios with sensible defaults, to be overridden by keyword."""

from functools import cache
from typing import Any

import numpy as np

from sim.search.evaluate import Scenario
from sim.search.objectives import parse_target
from sim.search.runner import Runner, Serial
from sim.search.store import DictMemory
from sim.specs.engine import EngineConfig
from sim.specs.hardware import HardwareProfile, load_gpu
from sim.specs.model import ModelSpec
from sim.specs.models import load_model
from sim.specs.slo import parse_slos
from sim.steptime.linear import LinearStepTime
from sim.steptime.options import StepTimeOptions
from sim.workload.load import Load
from sim.workload.trace import Trace

STEPS = LinearStepTime(base_s=0.01, per_token_s=1e-4, per_context_token_s=0.0)


@cache
def model(name: str = "Llama-3.1-8B") -> ModelSpec:
    return load_model(name)


@cache
def gpu(name: str = "h100-sxm") -> HardwareProfile:
    return load_gpu(name)


def make_trace(num_requests: int = 60, *, rate_rps: float = 20.0, seed: int = 0, most: int = 400) -> Trace:
    """Poisson arrivals, prompts and outputs of uniform length."""
    rng = np.random.default_rng(seed)
    return Trace(
        request_id=tuple(f"r{index}" for index in range(num_requests)),
        arrival_s=np.cumsum(rng.exponential(1 / rate_rps, num_requests)),
        prompt_tokens=rng.integers(10, most, num_requests),
        output_tokens=rng.integers(5, max(6, most // 4), num_requests),
    )


def make_scenario(
    trace: Trace | None = None, *, objective: str = "latency", slo: tuple[str, ...] = (), **changes: Any
) -> Scenario:
    """Linear step times on an H100 with a context of 2,048 tokens; the roofline's for `step_time` None."""
    facts: dict[str, Any] = {
        "model": model(),
        "gpu": gpu(),
        "load": Load(trace or make_trace()),
        "target": parse_target(objective, parse_slos(slo)),
        "base": EngineConfig(max_model_len=2048),
        "step_times": StepTimeOptions(given=changes.pop("step_time", STEPS)),
    }
    return Scenario(**{**facts, **changes})


def make_runner(scenario: Scenario) -> Runner:
    return Runner(scenario.target, Serial(scenario), DictMemory(), None)
