"""Results that several tests look at, simulated once a process."""

from functools import cache
from typing import Any

import sim

STEPS: list[dict[str, Any]] = []
"""Each step of the crowded run, as the step log has it."""


@cache
def crowded() -> sim.Result:
    """200 requests that come too fast for a small KV cache: they queue, are split into chunks and preempted."""
    engine = sim.EngineConfig(
        max_num_seqs=24, max_num_batched_tokens=1024, max_model_len=8000, num_gpu_blocks_override=900
    )
    limits = ["ttft_p99=500ms"]
    return sim.simulate(
        "Llama-3.1-8B", "h100-sxm", "chat", limit=200, rate_scale=8, engine=engine, slo=limits, step_log=STEPS.append
    )


@cache
def fleet() -> sim.Result:
    """Three replicas that serve turns of conversations."""
    return sim.simulate("Llama-3.1-8B", "h100-sxm", "multi-turn", limit=80, rate_scale=30, replicas=3, intervals=False)
