"""Prefill and decode in pools of their own against whole replicas: `python -m benchmarks.disaggregation ../shared/fleet`.

llm-d's guide pd-disaggregation @027a0532: gpt-oss-120b on 16 H200, 5,000 tokens in and 250 out, 45 requests/s for two minutes. Engine arguments and
scorers of the pools are the guide's (modelserver/gpu/vllm/base @04291b76 and @34272a64, router @83bb7c18); the whole replicas are plain ones behind a
Kubernetes Service (baseline/manifest.yaml @561fb873), which draws one for each connection, and their figures are older than the others', as the guide
says. What it leaves open is as vLLM has it, in the newest version. Nothing was fitted.
"""

import csv
import sys
from pathlib import Path
from typing import Any, NamedTuple

import sim

MEASURED = "measured/llmd_pd_const45_gptoss120b_16xH200.csv"
WORKLOAD = "workloads/guide_pd-disaggregation_1.yaml.in"
PREFILL = {
    "name": "prefill",
    "role": "prefill",
    "replicas": 8,
    "engine": {"block_size": 128, "gpu_memory_utilization": 0.9},
}
DECODE = {
    "name": "decode",
    "role": "decode",
    "replicas": 2,
    "engine": {"tensor_parallel_size": 4, "block_size": 128},
}
ROUTERS = {
    "router": "llm_d:queue=0,kv=0,prefix=0,active_request=1",
    "prefill_router": "llm_d:queue=0,kv=0,prefix=0,token_load=1,affinity_threshold=0.8",
}
MOST_ERROR = 0.25


class Arm(NamedTuple):
    """What was measured, and its fleet here."""

    measured: str
    fleet: dict[str, Any]


ARMS = (
    Arm("pd 8xTP1 P + 2xTP4 D", {"pools": [PREFILL, DECODE], **ROUTERS}),
    Arm("aggregated 16xTP1", {"pools": [{"replicas": 16}], "router": "random"}),
)
FIGURES = {
    ("ttft", "mean"): "mean_ttft_ms",
    ("ttft", "p95"): "p95_ttft_ms",
    ("e2e", "mean"): "mean_e2el_ms",
    ("e2e", "p95"): "p95_e2el_ms",
    ("tpot", "mean"): "mean_tpot_ms",
    ("itl", "mean"): "mean_itl_ms",
}


def main(folder: Path) -> None:
    print("| arm | figure | measured | simulated | off |\n|---|---|---|---|---|")
    for arm in ARMS:
        summary = sim.simulate("gpt-oss-120b", "h200-sxm", folder / WORKLOAD, fleet=arm.fleet, intervals=False).summary
        for (metric, stat), measured_ms in measured(folder, arm).items():
            simulated_ms = summary[FIGURES[metric, stat]]
            error = simulated_ms / measured_ms - 1
            verdict = ""
            if stat == "mean" and metric in ("ttft", "e2e"):
                verdict = f": {'' if abs(error) <= MOST_ERROR else 'not '}within {MOST_ERROR:.0%}"
            print(
                f"| {arm.measured} | {stat} {metric} (ms) | {measured_ms:,.1f} | {simulated_ms:,.1f} | {error:+.0%}{verdict} |"
            )


def measured(folder: Path, arm: Arm) -> dict[tuple[str, str], float]:
    """The figures of an arm in milliseconds, by metric and statistic."""
    with (folder / MEASURED).open() as file:
        rows = [row for row in csv.DictReader(file) if row["arm"] == arm.measured]
    return {
        (row["metric"], row["stat"]): float(row["value"]) * (1e3 if row["unit"] == "s" else 1)
        for row in rows
        if (row["metric"], row["stat"]) in FIGURES
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
