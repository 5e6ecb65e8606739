"""A prefix pulled from a peer against one computed again, by its length: `python -m benchmarks.pulls ../shared/fleet`.

llm-d's guide p2p-kv-cache-sharing: gpt-oss-120b, a replica an H200, blocks of 64 tokens, KV from host memory to host memory over
NIXL; one request at a time. Its first publication is in the table of the evidence, and the bandwidth of its pulls, 4.5 GB/s, beside other
transfers. A later one (README @6b571bbf) has the differences alone, "with rdma/ib": these are replayed at the bandwidth that
`fit_transfers.py` finds for one network card of other measurements. Nothing was fitted to either.

Times are the client's, here and there; the gateway is not simulated.
"""

import csv
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import sim
from benchmarks.fit_transfers import fit, measured_transfers
from sim.units import GIGA
from sim.workload.trace import Trace

MEASURED = "measured/llmd_p2p_pull_vs_recompute.csv"
TRANSFERS = "measured/kv_transfer_measured.csv"
ENGINE = sim.EngineConfig(block_size=64, gpu_memory_utilization=0.85, max_model_len=65536)
WITH_RDMA = {2048: -0.49, 8192: -0.76, 16384: -0.83, 32768: -0.86, 49152: -0.88}  # TTFT of a pull against recompute
COMPUTING: dict[str, Any] = {"pools": [{"replicas": 2}], "router": "round_robin"}
QUESTION_TOKENS = 16
MOST_ERROR = 0.25
SHORTEST = (64, 128, 256, 512, 1024, 2048)


class Times(NamedTuple):
    """TTFTs in milliseconds of a prefix that is computed and of one that is pulled."""

    recompute: float
    pull: float


def main(folder: Path) -> None:
    measured, rows = measured_times(folder), transfers(folder)
    guide_gb_s = next(float(row["value"]) for row in rows if row["what"] == "effective P2P pull")
    card_gb_s = fit(measured_transfers(rows))[0] / GIGA
    simulated = {length: times(length, guide_gb_s) for length in measured}
    print(f"Pulls at {guide_gb_s:g} GB/s:\n")
    print(
        "| prefix tokens | recompute measured (ms) | simulated | pull measured (ms) | simulated |\n|---|---|---|---|---|"
    )
    for length, there in measured.items():
        here = simulated[length]
        print(
            f"| {length:,} | {there.recompute:,.1f} | {here.recompute:,.1f} ({verdict(here.recompute, there.recompute)}) |"
            f" {there.pull:,.1f} | {here.pull:,.1f} ({verdict(here.pull, there.pull)}) |"
        )
    first = min(measured)
    print(f"\n- a pull pays from {pays_from(guide_gb_s)} tokens on (measured: at {first:,}, the shortest, and above)")
    print(f"\nPulls at {card_gb_s:.1f} GB/s, against the later publication:\n")
    print("| prefix tokens | pull against recompute, measured | simulated |\n|---|---|---|")
    for length, there_off in WITH_RDMA.items():
        found = times(length, card_gb_s)
        print(f"| {length:,} | {there_off:+.0%} | {_off(found.pull, found.recompute)} |")


def measured_times(folder: Path) -> dict[int, Times]:
    """By length of the prefix, of replicas on one GPU."""
    with (folder / MEASURED).open() as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == "gpt-oss-120b"]
    return {int(row["prefix_tokens"]): Times(float(row["recompute_ms"]), float(row["p2p_pull_ms"])) for row in rows}


def transfers(folder: Path) -> list[dict[str, str]]:
    with (folder / TRANSFERS).open() as file:
        return list(csv.DictReader(file))


def times(length: int, gb_s: float) -> Times:
    """Of a request whose prefix another replica has."""
    pulling = {"kv_pull": {"via": "host", "kv_recompute_threshold": 1}, "transfer": {"bandwidth_gb_s": gb_s}}
    return Times(_ttft_ms(length, COMPUTING), _ttft_ms(length, COMPUTING | pulling))


def _ttft_ms(length: int, fleet: Mapping[str, Any]) -> float:
    prompts = np.full(2, length + QUESTION_TOKENS)
    segments = [((0, length), (question, QUESTION_TOKENS)) for question in (1, 2)]
    trace = Trace(("first", "second"), np.array([0.0, 60.0]), prompts, np.array([1, 1]), segments=segments)
    found = sim.simulate("gpt-oss-120b", "h200-sxm", trace, engine=ENGINE, fleet=fleet, clock="client", intervals=False)
    return float(found.requests["ttft_ms"].iloc[1])


def pays_from(gb_s: float) -> int | None:
    """The shortest of some lengths at which a pull is sooner there."""
    return next((length for length in SHORTEST if (found := times(length, gb_s)).pull < found.recompute), None)


def _off(here: float, there: float) -> str:
    return f"{here / there - 1:+.0%}"


def verdict(here: float, there: float, most_error: float = MOST_ERROR) -> str:
    """How far off, and whether that is too far."""
    return f"{_off(here, there)}{'' if abs(here / there - 1) <= most_error else f', not within {most_error:.0%}'}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
