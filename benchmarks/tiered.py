"""KV on the GPU alone and with 200 GiB a replica on the CPU: `python -m benchmarks.tiered ../shared/fleet`.

llm-d's guide tiered-prefix-cache @05126b7e: Qwen3-32B, eight replicas of two H100, prompts of 16,000 shared and 256 own tokens in
250 groups, Poisson stages of a minute. What the guide's table leaves open is as vLLM has it, in the newest version; the router is llm-d's with
the guide's weights of 1. Its scorer of prefixes on the CPU has an index of 82,000 blocks a replica beside the engine's own; here one index of that size has
the weight of both. Nothing was fitted.
"""

import csv
import sys
from pathlib import Path
from typing import NamedTuple

import sim

MEASURED = "measured/llmd_tiered_qwen3-32b.csv"
WORKLOAD = "workloads/guide_tiered-prefix-cache_1.yaml.in"
STAGES = (5, 10, 15, 20, 25, 30, 35, 40)  # requests a second
RATES = (5, 10, 20, 40)  # of which the table has these
SATURATED_S = 5.0  # mean TTFT
MOST_ERROR = 0.20


class Arm(NamedTuple):
    """GiB of host memory, and the router."""

    size_gib: float | None
    router: str


ARMS = {
    "hbm": Arm(None, "llm_d:queue=1,kv=1,prefix=1,no_hit_lru=1"),
    "hbm+cpu200GiB_offloadingconnector": Arm(200.0, "llm_d:queue=1,kv=1,prefix=2,no_hit_lru=1,lru_blocks=82000"),
}


class Figures(NamedTuple):
    """Of a stage: prompt and output tokens a second, mean end-to-end latency, mean time to first token."""

    total_tok_s: float
    e2e_s: float
    ttft_s: float


def main(folder: Path) -> None:
    measured = {arm: measured_stages(folder, arm) for arm in ARMS}
    simulated = {name: simulated_stages(folder, arm) for name, arm in ARMS.items()}
    print(
        "| arm | requests/s | tok/s measured | simulated | mean E2E measured (s) | simulated | mean TTFT measured (s) | simulated |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for arm in ARMS:
        for rate in RATES:
            there, here = measured[arm][rate], simulated[arm][rate]
            pairs = f"{there.total_tok_s:,.0f} | {here.total_tok_s:,.0f} | {there.e2e_s:.1f} | {here.e2e_s:.1f} | {there.ttft_s:.2f} | {here.ttft_s:.2f}"
            print(f"| {arm} | {rate} | {pairs} |")
    print("\n| requests/s | figure | with CPU / without, measured | simulated | off |\n|---|---|---|---|---|")
    without, with_cpu = ARMS
    for rate in RATES:
        for name in ("total_tok_s", "e2e_s"):
            there, here = (
                getattr(arms[with_cpu][rate], name) / getattr(arms[without][rate], name)
                for arms in (measured, simulated)
            )
            off = here / there - 1
            verdict = f"{'' if abs(off) <= MOST_ERROR else 'not '}within {MOST_ERROR:.0%}"
            print(f"| {rate} | {name} | {there:.2f} | {here:.2f} | {off:+.0%}: {verdict} |")
    print()
    for arm in ARMS:
        print(f"- {arm} saturates {_begins(simulated[arm])} (measured: {_begins(measured[arm])})")


def measured_stages(folder: Path, arm: str) -> dict[int, Figures]:
    """By rate."""
    with (folder / MEASURED).open() as file:
        rows = [row for row in csv.DictReader(file) if row["arm"] == arm and row["offered_unit"] == "poisson rps"]
    return {
        int(row["offered"]): Figures(float(row["total_tok_s"]), float(row["e2e_mean_s"]), float(row["ttft_mean_s"]))
        for row in rows
    }


def simulated_stages(folder: Path, arm: Arm) -> dict[int, Figures]:
    """By rate."""
    engine = sim.EngineConfig(tensor_parallel_size=2, kv_offloading_size=arm.size_gib)
    found = sim.simulate(
        "Qwen3-32B", "h100-sxm", folder / WORKLOAD, engine=engine, replicas=8, router=arm.router, intervals=False
    )
    return {
        rate: Figures(stage["total_token_throughput"], stage["mean_e2el_ms"] / 1e3, stage["mean_ttft_ms"] / 1e3)
        for rate, stage in zip(STAGES, found.summary["stages"], strict=True)
    }


def _begins(stages: dict[int, Figures]) -> str:
    return next((f"from {rate} req/s" for rate in RATES if stages[rate].ttft_s > SATURATED_S), "nowhere")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
