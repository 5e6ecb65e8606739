"""Prefill and decode in pools of their own against whole replicas: `python -m benchmarks.disaggregation ../shared/fleet`.

llm-d's guide pd-disaggregation @027a0532: gpt-oss-120b on 16 H200, 5,000 tokens in and 250 out, 45 requests/s for two minutes. Engine arguments and
scorers of the pools are the guide's (modelserver/gpu/vllm/base @04291b76 and @34272a64, router @83bb7c18); the whole replicas are plain ones behind a
Kubernetes Service (baseline/manifest.yaml @561fb873), which draws one for each connection, and their figures are older than the others', as the guide
says. What it leaves open is as vLLM has it, in the newest version. Nothing was fitted.

The client of the pools was not keeping up (docs/fleet.md says how that is known). A second table says what it would have reported of the times
simulated here, after inference-perf's worker: loadgen/load_generator.py @0167ee76, apis/streaming_parser.py @35d21d64, datagen/datagen_utils.py @16ca8930.
"""

import csv
import sys
from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

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
NUM_WORKERS, MOST_IN_HAND = 45, 100  # the load's num_workers and worker_max_concurrency
PROMPT_S = 1.0
"""For so long a worker's loop makes a prompt: 45 made 5,400 in the 124 s before the last request, and a thousandth of all gaps between tokens is 0.99 s or longer."""


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
        found = sim.simulate(
            "gpt-oss-120b", "h200-sxm", folder / WORKLOAD, fleet=arm.fleet, clock="client", intervals=False
        )
        figures = measured(folder, arm)
        simulated = {key: found.summary[FIGURES[key]] for key in figures}
        for table in (figures, simulated):
            table["first to last token", "mean"] = table["e2e", "mean"] - table["ttft", "mean"]
        for key, measured_ms in figures.items():
            print(row(arm, key, measured_ms, simulated[key]))
        if arm is ARMS[0]:
            by_client = dict(zip((("ttft", "mean"), ("e2e", "mean")), as_seen(found.requests), strict=True))
            late = [row(arm, key, figures[key], seen_ms) for key, seen_ms in by_client.items()]
    print(f"\nAs a client sees it whose loop makes a prompt for {PROMPT_S:g} s:\n")
    print("| arm | figure | measured | simulated | off |\n|---|---|---|---|---|", *late, sep="\n")


def row(arm: Arm, key: tuple[str, str], measured_ms: float, simulated_ms: float) -> str:
    metric, stat = key
    error = simulated_ms / measured_ms - 1
    verdict = ""
    if stat == "mean" and metric in ("ttft", "e2e"):
        verdict = f": {'' if abs(error) <= MOST_ERROR else 'not '}within {MOST_ERROR:.0%}"
    return (
        f"| {arm.measured} | {stat} {metric} (ms) | {measured_ms:,.1f} | {simulated_ms:,.1f} | {error:+.0%}{verdict} |"
    )


@dataclass
class Flight:
    """A request that a worker has sent, and what it has seen of it."""

    sent_s: float
    ttft_s: float
    e2e_s: float
    seen_ttft_s: float | None = None


class Worker:
    """Reads all that has come, sends all that is due, and makes the next prompt, by turns; `seen` are TTFTs and end-to-end latencies."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, float]] = []
        self._in_hand: deque[tuple[float, float, float]] = deque()
        self._sent: list[Flight] = []

    def turn(self, now_s: float, prompts: deque[tuple[float, float, float]]) -> float | None:
        """When the next turn comes; None if there is nothing left to do."""
        self._read(now_s)
        while self._in_hand and self._in_hand[0][0] <= now_s:
            _, ttft_s, e2e_s = self._in_hand.popleft()
            self._sent.append(Flight(now_s, ttft_s, e2e_s))
        if prompts and len(self._in_hand) + len(self._sent) < MOST_IN_HAND:
            self._in_hand.append(prompts.popleft())
            return now_s + PROMPT_S
        coming = [one.sent_s + (one.ttft_s if one.seen_ttft_s is None else one.e2e_s) for one in self._sent]
        return min([*coming, *(arrival_s for arrival_s, _, _ in self._in_hand)], default=None)

    def _read(self, now_s: float) -> None:
        for one in self._sent:
            if one.seen_ttft_s is None and one.sent_s + one.ttft_s <= now_s:
                one.seen_ttft_s = now_s - one.sent_s
            if one.seen_ttft_s is not None and one.sent_s + one.e2e_s <= now_s:
                self.seen.append((one.seen_ttft_s, now_s - one.sent_s))
        self._sent = [one for one in self._sent if one.sent_s + one.e2e_s > now_s]


def as_seen(requests: pd.DataFrame) -> tuple[float, float]:
    """Mean TTFT and end-to-end latency in milliseconds of these requests as such workers see them."""
    columns = requests["arrival_s"], requests["ttft_ms"] / 1e3, requests["e2el_ms"] / 1e3
    prompts = deque(zip(*(column.tolist() for column in columns), strict=True))
    workers = [Worker() for _ in range(NUM_WORKERS)]
    turns = [(requests["arrival_s"].min() - 1.0, number) for number in range(NUM_WORKERS)]  # a second ahead
    while turns:
        now_s, number = heappop(turns)
        next_s = workers[number].turn(now_s, prompts)
        if next_s is not None:
            heappush(turns, (next_s, number))
    ttfts_s, e2es_s = zip(*(pair for worker in workers for pair in worker.seen), strict=True)
    return 1e3 * sum(ttfts_s) / len(ttfts_s), 1e3 * sum(e2es_s) / len(e2es_s)


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
