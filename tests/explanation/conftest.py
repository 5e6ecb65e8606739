from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sim
from sim.steptime.linear import LinearStepTime
from sim.workload.trace import Trace

Run = Callable[..., sim.Result]


def trace(*requests: tuple[str, float, int, int]) -> Trace:
    """Of names, arrivals, prompts and outputs."""
    names, arrival_s, prompts, outputs = zip(*requests, strict=True)
    return Trace(names, np.array(arrival_s), np.array(prompts), np.array(outputs))


def timed(base_s: float = 0.0, per_token_s: float = 0.0) -> LinearStepTime:
    return LinearStepTime(base_s=base_s, per_token_s=per_token_s, per_context_token_s=0.0)


def run(requests: Trace, step_time: LinearStepTime, *, more: dict[str, Any] | None = None, **engine: Any) -> sim.Result:
    """Synchronous scheduling, so that a pass is a step."""
    arguments = {"max_model_len": 1000, "async_scheduling": False, **engine}
    return sim.simulate(
        "Llama-3.1-8B",
        "h100-sxm",
        requests,
        engine=sim.EngineConfig(**arguments),
        step_time_model=step_time,
        intervals=False,
        **(more or {}),
    )


@pytest.fixture(scope="session")
def crowded() -> sim.Result:
    """The second and third request wait until the first has ended, one after the other."""
    requests = trace(("A", 0.0, 8, 5), ("B", 2.5, 8, 3), ("C", 2.5, 8, 3))
    return run(requests, timed(base_s=1.0), max_num_seqs=1)
