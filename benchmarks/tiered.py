"""KV on the GPU alone and with 200 GiB a replica on the CPU: `python -m benchmarks.tiered ../shared/fleet`.

llm-d's guide tiered-prefix-cache @05126b7e: Qwen3-32B, eight replicas of two H100, prompts of 16,000 shared and 256 own tokens in
250 groups, Poisson stages of a minute. What the guide's table leaves open is as vLLM has it, in the newest version whose memory plan has the 2,384,000 tokens of KV that the
guide gives for the eight (0.17 to 0.19 have them to the token); the router is llm-d's with
the guide's weights of 1 (router/single-host/tiered-prefix-cache-cpu.values.yaml @68d37a35), its scorer of prefixes on the CPU with an index of 82,000
blocks a replica. The other index is as large as the engine's cache where llm-d knows that size, and has 31,250 blocks where it does not: which held is not known,
so both are replayed. Nothing was fitted.
"""

import csv
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import sim

MEASURED = "measured/llmd_tiered_qwen3-32b.csv"
WORKLOAD = "workloads/guide_tiered-prefix-cache_1.yaml.in"
VLLM_VERSION = "0.19.1"
STAGES = (5, 10, 15, 20, 25, 30, 35, 40)  # requests a second
RATES = (5, 10, 20, 40)  # of which the table has these
SATURATED_S = 5.0  # mean TTFT
MOST_ERROR = 0.20


class Arm(NamedTuple):
    """What was measured, GiB of host memory, and the router."""

    measured: str
    size_gib: float | None
    router: str


TIERED = "llm_d:queue=1,kv=1,prefix=1,cpu_prefix=1,no_hit_lru=1"
WITHOUT = "hbm"
ARMS = {
    WITHOUT: Arm("hbm", None, "llm_d:queue=1,kv=1,prefix=1,no_hit_lru=1"),
    "hbm+cpu200GiB, index of the cache's size": Arm("hbm+cpu200GiB_offloadingconnector", 200.0, TIERED),
    "hbm+cpu200GiB, index of 31,250 blocks": Arm(
        "hbm+cpu200GiB_offloadingconnector", 200.0, f"{TIERED},lru_blocks=31250"
    ),
}


class Figures(NamedTuple):
    """Of a stage: prompt and output tokens a second, mean end-to-end latency, mean time to first token."""

    total_tok_s: float
    e2e_s: float
    ttft_s: float


ByArm = Mapping[str, Mapping[int, Figures]]


def main(folder: Path) -> None:
    measured = {name: measured_stages(folder, arm.measured) for name, arm in ARMS.items()}
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
    for arm in ARMS:
        if arm != WITHOUT:
            print(f"\n{arm}, against hbm alone:\n")
            print("\n".join(ratios(measured, simulated, arm)))
    print()
    for arm in ARMS:
        print(f"- {arm} saturates {_begins(simulated[arm])} (measured: {_begins(measured[arm])})")


def ratios(measured: ByArm, simulated: ByArm, arm: str) -> Iterator[str]:
    """Of an arm to the one without host memory, as measured and as simulated."""
    yield "| requests/s | figure | with CPU / without, measured | simulated | off |"
    yield "|---|---|---|---|---|"
    for rate in RATES:
        for name in ("total_tok_s", "e2e_s"):
            there, here = (
                getattr(arms[arm][rate], name) / getattr(arms[WITHOUT][rate], name) for arms in (measured, simulated)
            )
            off = here / there - 1
            verdict = f"{'' if abs(off) <= MOST_ERROR else 'not '}within {MOST_ERROR:.0%}"
            yield f"| {rate} | {name} | {there:.2f} | {here:.2f} | {off:+.0%}: {verdict} |"


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
        "Qwen3-32B",
        "h100-sxm",
        folder / WORKLOAD,
        engine=engine,
        vllm_version=VLLM_VERSION,
        replicas=8,
        clock="client",
        router=arm.router,
        intervals=False,
    )
    return {
        rate: Figures(stage["total_token_throughput"], stage["mean_e2el_ms"] / 1e3, stage["mean_ttft_ms"] / 1e3)
        for rate, stage in zip(STAGES, found.summary["stages"], strict=True)
    }


def _begins(stages: dict[int, Figures]) -> str:
    return next((f"from {rate} req/s" for rate in RATES if stages[rate].ttft_s > SATURATED_S), "nowhere")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
