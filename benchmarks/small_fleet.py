"""Two replicas of a model with states, each on a workstation's GPU, replayed: `python -m benchmarks.small_fleet ../shared/fleet`.

llm-d's guide optimized-baseline with Qwen3.5-4B on two RTX PRO 6000, its ladder of sixteen stages; clients give up after 300 s. The version of vLLM is not said.
Before 0.28 vLLM cached no prefixes of such a model by itself (vllm#50991), and the first stage's TTFTs are those of computed prompts: the newest of these
versions is taken, after the newest of all had missed. Nothing else was chosen, and nothing is fitted to it.
"""

import csv
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import sim
from benchmarks.fleet import WORKLOAD

MEASURED = "measured/llmd_qwen3.5-4b_2xTP1_rtxpro6000.csv"
FLEET = {"pools": [{"replicas": 2}], "router": "llm_d:no_hit_lru=2", "admission": {"timeout_s": 300}}
VERSION = "0.27.1"


def main(folder: Path) -> None:
    with (folder / MEASURED).open() as file:
        measured = list(csv.DictReader(file))
    found = sim.simulate(
        "Qwen3.5-4B", "rtx-pro-6000", folder / WORKLOAD.format("optimized-baseline"),
        fleet=FLEET, vllm_version=VERSION, intervals=False,
    )  # fmt: skip
    stages = found.summary["stages"][1:]
    print("| req/s | tok/s measured | simulated | P90 TTFT measured (s) | simulated | gave up, measured | simulated |")
    print("|---|---|---|---|---|---|---|")
    rows = [row(there, stage) for there, stage in zip(measured, stages, strict=True)]
    print(*rows, sep="\n")
    all_served = [pair for pair in zip(measured, stages, strict=True) if pair[0]["failures"] == "0"]
    for what, column, figure, unit in (
        ("output tok/s", "output_tps", "output_throughput", 1),
        ("P90 TTFT", "ttft_p90_s", "p90_ttft_ms", 1000),
    ):
        errors = [stage[figure] / unit / float(there[column]) - 1 for there, stage in all_served]
        print(
            f"- {what} where nobody gave up: {median(map(abs, errors)):.0%} off in the median, worst {max(errors, key=abs):+.0%}"
        )


def row(there: Mapping[str, str], stage: Mapping[str, Any]) -> str:
    return (
        f"| {there['rate']} | {float(there['output_tps']):,.0f} | {stage['output_throughput']:,.0f} | {there['ttft_p90_s']} |"
        f" {stage['p90_ttft_ms'] / 1000:.1f} | {there['failures']} | {stage['failed']} |"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
