"""A pool of shared prefixes behind three routers, one of which has replicas pull: `python -m benchmarks.pull_pool ../shared/fleet`.

llm-d's guide p2p-kv-cache-sharing (benchmark-results/gpt-oss-120b-h200.md and benchmarking/README.md, @067fe1b4 and @01cac34c): gpt-oss-120b on sixteen
H200s, 128 prefixes of 48K tokens, questions of 256 tokens, answers of 64, five stages at a constant rate. The arms are its epp-affinity.yaml, epp-load.yaml
and epp-load-p2p.yaml. What it does not say is how long a stage lasts: 60 s, as its first arm tells, which serves all that comes, so that
achieved over offered is T / (T + the last request's latency). Pulls have the bandwidth of one network card (`fit_transfers.py`). Nothing was fitted to these rows.

The guide's documents are replayed too: 192 conversations of six questions, each about 48K tokens of its own, 128 at a time, on fourteen replicas.

Of the guide's replicas each has 88 GiB of KV in host memory as well, and so have these. Its hot set, whose answers of 512 tokens took 0.1 s by its own figures, is left out.
"""

import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import sim
from benchmarks.fit_transfers import fit, measured_transfers
from benchmarks.pulls import ENGINE, transfers, verdict
from sim.units import GIGA
from sim.workload.trace import Trace

MEASURED = "measured/llmd_p2p_pool_gptoss120b_h200.csv"
SCENARIO = "pool_128x48K_256q_64out_16pods"
DOCUMENTS = "measured/llmd_p2p_docqa_and_agentic.csv"
CONVERSATIONS = "workloads/guide_p2p-kv-cache-sharing_1.yaml.in"
HOST_GIB = 88
VLLM_VERSION = "0.29.0"  # the newest whose windows stay cached everywhere, as all did in July 2026
NUM_REPLICAS, NUM_PREFIXES = 16, 128
NUM_REPLICAS_OF_DOCUMENTS = 14
PREFIX_TOKENS, QUESTION_TOKENS, OUTPUT_TOKENS = 48 * 1024, 256, 64
STAGE_S = 60.0
DRAINED_S = 600.0  # from the beginning of a stage to that of the next
MOST_ERROR = 0.12
AFFINITY = "llm_d_precise:no_hit_lru=2"
BY_LOAD = "llm_d:queue=3,kv=2,prefix=0,picker=weighted_random"


class Cell(NamedTuple):
    """Requests a second that were served, and their median latency in seconds."""

    achieved_rps: float
    latency_s: float


def main(folder: Path) -> None:
    measured = measured_cells(folder)
    rates = sorted({rate for _, rate in measured})
    trace = pool_trace(rates)
    print("| arm | offered req/s | achieved measured | simulated | median latency measured (s) | simulated |")
    print("|---|---|---|---|---|---|")
    card_bytes_per_s, *_ = fit(measured_transfers(transfers(folder)))
    card_gb_s = card_bytes_per_s / GIGA
    for arm, fleet in arms(card_gb_s).items():
        for rate, here in zip(rates, simulated(trace, fleet), strict=True):
            there = measured[arm, rate]
            judged = verdict(here.achieved_rps, there.achieved_rps, MOST_ERROR)
            print(
                f"| {arm} | {rate:g} | {there.achieved_rps:.2f} | {here.achieved_rps:.2f} ({judged}) |"
                f" {there.latency_s:.2f} | {here.latency_s:.2f} |"
            )
    print("\n| arm | P50, P95 and P99 of TTFT (s), turns/s: measured twice | simulated |\n|---|---|---|")
    print(*documents(folder, card_gb_s), sep="\n")


def measured_cells(folder: Path) -> dict[tuple[str, float], Cell]:
    """By arm and offered rate."""
    with (folder / MEASURED).open() as file:
        rows = [row for row in csv.DictReader(file) if row["scenario"] == SCENARIO]
    return {
        (row["arm"], float(row["offered_rps"])): Cell(float(row["achieved_rps"]), float(row["lat_p50_s"]))
        for row in rows
    }


def arms(card_gb_s: float) -> Mapping[str, Mapping[str, Any]]:
    """Fleets by the names of the arms."""
    return {
        "affinity": _fleet(NUM_REPLICAS, AFFINITY),
        "load": _fleet(NUM_REPLICAS, BY_LOAD),
        "load+p2p": _fleet(NUM_REPLICAS, BY_LOAD, card_gb_s),
    }


def _fleet(num_replicas: int, router: str, card_gb_s: float | None = None) -> dict[str, Any]:
    """With a network card a replica pulls, from host to host, at least 2,048 tokens, as the guide has it."""
    fleet: dict[str, Any] = {"pools": [{"replicas": num_replicas}], "router": router}
    if card_gb_s is None:
        return fleet
    pulls = {"via": "host", "kv_recompute_threshold": 2048}
    return fleet | {"kv_pull": pulls, "transfer": {"bandwidth_gb_s": card_gb_s}}


def documents(folder: Path, card_gb_s: float) -> Iterator[str]:
    """A row an arm."""
    with (folder / DOCUMENTS).open() as file:
        rows = [row for row in csv.DictReader(file) if row["set"] == "gptoss docqa"]
    fleets = {
        "precise": _fleet(NUM_REPLICAS_OF_DOCUMENTS, AFFINITY),
        "precise+P2P": _fleet(NUM_REPLICAS_OF_DOCUMENTS, AFFINITY, card_gb_s),
        "load+P2P": _fleet(NUM_REPLICAS_OF_DOCUMENTS, BY_LOAD, card_gb_s),
    }
    for arm, fleet in fleets.items():
        measured = "; ".join(
            f"{row['ttft_p50']}, {row['ttft_p90_or_p95']}, {row['ttft_p99']}, {row['turns_per_s']}"
            for row in rows
            if row["arm"] == arm
        )
        found = _ran(folder / CONVERSATIONS, fleet)
        ttft_s = found.requests["ttft_ms"].quantile([0.5, 0.95, 0.99]) / 1000
        here = ", ".join(f"{value:.1f}" for value in ttft_s)
        yield f"| {arm} | {measured} | {here}, {found.summary['request_throughput']:.2f} |"


def _ran(trace: Trace | Path, fleet: Mapping[str, Any]) -> sim.Result:
    """By the client's clock."""
    engine = replace(ENGINE, kv_offloading_size=HOST_GIB)
    return sim.simulate(
        "gpt-oss-120b",
        "h200-sxm",
        trace,
        engine=engine,
        fleet=fleet,
        vllm_version=VLLM_VERSION,
        clock="client",
        intervals=False,
    )


def pool_trace(rates: Sequence[float], seed: int = 0) -> Trace:
    """Any prefix for each request; a stage begins when that before has drained."""
    counts = [round(rate * STAGE_S) for rate in rates]
    stage, prompt_tokens = np.repeat(np.arange(len(rates)), counts), PREFIX_TOKENS + QUESTION_TOKENS
    within_s = [np.arange(count) / rate for rate, count in zip(rates, counts, strict=True)]
    prefixes = np.random.default_rng(seed).integers(NUM_PREFIXES, size=len(stage))
    return Trace(
        tuple(map(str, range(len(stage)))),
        np.concatenate(within_s) + DRAINED_S * stage,
        np.full(len(stage), prompt_tokens),
        np.full(len(stage), OUTPUT_TOKENS),
        segments=[
            ((int(prefix), PREFIX_TOKENS), (NUM_PREFIXES + row, QUESTION_TOKENS)) for row, prefix in enumerate(prefixes)
        ],
        stage=stage,
    )


def simulated(trace: Trace, fleet: Mapping[str, Any]) -> list[Cell]:
    """Of each stage."""
    found = _ran(trace, fleet)
    assert trace.stage is not None, "it has stages"
    cells = []
    for of_stage in (found.requests[trace.stage == stage] for stage in np.unique(trace.stage)):
        took_s = of_stage["finish_s"].max() - of_stage["arrival_s"].min()
        cells.append(Cell(len(of_stage) / took_s, float(of_stage["e2el_ms"].median()) / 1000))
    return cells


if __name__ == "__main__":
    main(Path(sys.argv[1]))
