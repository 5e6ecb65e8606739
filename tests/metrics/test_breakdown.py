"""Where the time of steps goes by operator, against the roofline that it comes from."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

import sim
from sim.metrics.step_work import step_work
from sim.metrics.utilization import Work, needed
from sim.steptime.protocol import StepShape


def run(prompt: int, output: int, model: str = "Llama-3.1-8B", **engine: Any) -> sim.Result:
    requests = pd.DataFrame({"arrival_s": [0.0], "prompt_tokens": [prompt], "output_tokens": [output]})
    return sim.simulate(model, "h100-sxm", requests, engine=sim.EngineConfig(**engine), intervals=False)


@pytest.mark.parametrize("model", ["Llama-3.1-8B", "openai/gpt-oss-20b", "Qwen/Qwen3-30B-A3B"])
def test_work_by_operator_adds_up_to_that_of_the_run(model: str) -> None:
    """A prompt of 700 tokens and 40 decodes behind it, windows and experts too: as utilization has it for the whole."""
    result = run(700, 41, model)
    deployment = result.deployment
    routing, size = deployment.step_times.expert_routing, deployment.engine.kv_cache_dtype_bytes
    shapes = [StepShape(0, 0, ((700, 0),), 1), *(StepShape(1, 700 + n, (), 1) for n in range(1, 41))]
    each = [Work.total(step_work(deployment.model, shape, size, routing).values()) for shape in shapes]
    assert Work.total(each) == pytest.approx(needed(deployment.model, result.run.pools[0].leaps, size, routing))


def test_decodes_of_one_request_read_the_matrices() -> None:
    """All shares add up; gate_up_proj's 235 MB in 32 layers are read at the fitted 0.896 of the bandwidth, at a FLOP a byte."""
    found = run(8, 400).breakdown
    rows = {row.operator: row for row in found.operators}
    assert sum(row.busy_share for row in found.operators) == pytest.approx(1.0)
    assert found.operators[0].operator == "gate_up_proj"
    assert (rows["gate_up_proj"].bound, rows["host"].bound) == ("memory", "host")
    assert rows["gate_up_proj"].prefill_share < 0.02
    assert rows["gate_up_proj"].arithmetic_intensity == pytest.approx(1.0, abs=0.1)
    assert rows["gate_up_proj"].bytes_per_s == pytest.approx(0.896 * 3.35e12, rel=0.05)
    assert rows["host"].flops_per_s is None
    assert found.peak_flops == 989.4e12


def test_long_prompts_compute() -> None:
    """8,192 tokens at once: most of it in matrices, at four fifths of the peak and far beyond the ridge."""
    found = run(8192, 1, max_num_batched_tokens=8192).breakdown
    rows = {row.operator: row for row in found.operators}
    assert {rows[name].bound for name in ("gate_up_proj", "down_proj", "attention")} == {"compute"}
    assert rows["gate_up_proj"].prefill_share == 1.0
    assert 0.7 < (rows["gate_up_proj"].flops_per_s or 0) / found.peak_flops < 0.9
    assert (rows["gate_up_proj"].arithmetic_intensity or 0) > found.peak_flops / found.peak_bytes_per_s


@pytest.mark.parametrize(
    "engine", [{}, {"tensor_parallel_size": 4}, {"quantization": "fp8"}, {"kv_cache_dtype": "fp8"}]
)
def test_nothing_goes_beyond_the_roof(engine: dict[str, Any]) -> None:
    """Neither an operator nor a step does more than one GPU can, however many there are."""
    found = sim.simulate(
        "Llama-3.1-8B",
        "h100-sxm",
        "chat",
        limit=200,
        engine=sim.EngineConfig(**engine),
        intervals=False,
    ).breakdown
    roof = np.minimum(found.steps[:, 0] * found.peak_bytes_per_s, found.peak_flops)
    assert (found.steps[:, 1] <= roof).all()
    for row in found.operators:
        assert (row.flops_per_s or 0) <= found.peak_flops
        assert (row.bytes_per_s or 0) <= found.peak_bytes_per_s
