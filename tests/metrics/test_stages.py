"""Figures by stage: each over its own requests, rates as offered and as served."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

import sim
from sim.engine.records import RequestRecords
from sim.metrics.stages import stage_figures
from sim.report.parts import stage_rows
from sim.workload.trace import Trace
from tests.metrics.makers import Life, make_requests

OFFERED_S = (0, 1, 2, 10, 10)
STAGES = (0, 0, 0, 3, 3)


def staged(lives: RequestRecords) -> Trace:
    return Trace(
        request_id=tuple("abcde"),
        arrival_s=np.array(OFFERED_S, dtype=np.float64),
        prompt_tokens=lives.prompt_tokens,
        output_tokens=lives.output_tokens,
        stage=np.array(STAGES),
    )


def test_each_stage_counts_its_own_requests() -> None:
    """Three requests in two seconds offer 1 req/s; two of them end, the last 5 s after the first came. Stage 3 was sent at 20."""
    lives = make_requests(
        Life(0, 1, 3, output_tokens=5),
        Life(1, 3, 5, output_tokens=11),
        Life(2, rejected="too long"),
        Life(20, 21, 24, output_tokens=1),
        Life(20, 23, 24, output_tokens=3),
    )
    first, last = stage_figures(staged(lives), lives)
    assert {key: first[key] for key in ("stage", "arrived", "completed", "rejected", "duration", "request_rate")} == {
        "stage": 0, "arrived": 3, "completed": 2, "rejected": 1, "duration": 5.0, "request_rate": 1.0,
    }  # fmt: skip
    assert (first["request_throughput"], first["output_throughput"]) == (2 / 5, 16 / 5)
    assert (first["mean_ttft_ms"], first["median_ttft_ms"], first["mean_e2el_ms"]) == (1500, 1500, 3500)
    assert first["mean_tpot_ms"] == pytest.approx((2000 / 4 + 2000 / 10) / 2)
    assert (last["stage"], last["request_rate"], last["duration"]) == (3, None, 4.0)
    assert (last["mean_ttft_ms"], last["p90_ttft_ms"], last["mean_tpot_ms"]) == (2000, pytest.approx(2800), 500)
    assert "mean_itl_ms" not in first


def test_a_stage_that_served_nobody_shows_dashes() -> None:
    lives = make_requests(*[Life(arrival, rejected="too long") for arrival in OFFERED_S])
    rows = list(stage_rows(stage_figures(staged(lives), lives)))
    assert [row.split() for row in rows[1:]] == [
        ["0", "1.0", "0", *"------"],
        ["3", "-", "0", *"------"],
    ]


def run(**columns: Any) -> Any:
    requests = {"arrival_s": [0.0, 0.5, 1.0, 1.5], "prompt_tokens": [100] * 4, "output_tokens": [50] * 4}
    return sim.simulate("Qwen3-0.6B", "h100-sxm", pd.DataFrame(requests | columns), intervals=False)


def test_stages_of_one_are_the_run() -> None:
    """A single stage has the run's own figures; a trace without stages has none."""
    assert "stages" not in run().summary
    found = run(stage=[2] * 4)
    (stage,) = found.summary["stages"]
    assert stage == {"stage": 2, "request_rate": 2.0} | {
        key: found.summary[key] for key in stage.keys() - {"stage", "request_rate"}
    }
    assert "-Stages-" in str(found)


def test_all_stages_together_are_the_run() -> None:
    found = run(stage=[0, 0, 1, 5])
    assert [stage["stage"] for stage in found.summary["stages"]] == [0, 1, 5]
    assert sum(stage["completed"] for stage in found.summary["stages"]) == 4
