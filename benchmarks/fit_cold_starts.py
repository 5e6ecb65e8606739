"""How long each phase of a replica's start takes, from measured ones: `python -m benchmarks.fit_cold_starts ../shared/fleet`.

Medians of the rows named in ROWS; those of a desktop, of early versions without a model and outliers are left out. Prints the
starts whose total was measured beside what the phases add up to, and writes `sim/cluster/cold_starts.json`.
"""

import csv
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from sim.cluster.cold_start import StartUp
from sim.units import GIB, GIGA

MEASURED = "cold_start_phases.csv"
OUTPUT = Path(__file__).parents[1] / "sim" / "cluster" / "cold_starts.json"
POD = "llm-d gke-pod-snapshots @005cf571"
P2P = "llm-d modelexpress-p2p @050d5b02"
RTX = "vllm#44881"
EARLY = "vllm#11005"
SMALL = "vllm#20264"


class Row(NamedTuple):
    """Seconds of a phase, and GB that each GPU loaded in it where that is said."""

    source: str
    phase: str
    seconds: float
    gigabytes: float | None


def main(folder: Path) -> None:
    rows = read(folder / MEASURED)
    OUTPUT.write_text(json.dumps(fitted(rows), indent=2) + "\n")
    for name, weights_gb, start_up, measured_s in TOTALS:
        found = sum(start_up.phases(weights_gb * GIGA).values())
        print(f"{name}: {measured_s:.0f} s measured, {found:.0f} s by phases")


TOTALS = (
    ("Qwen3-32B on one H100", 65.5, StartUp(image="streamed"), 278.0),
    ("Qwen3-32B on two H100", 32.8, StartUp(), 135.0),
    ("Qwen3-32B on two H100, compiled before", 32.8, StartUp(compile="cached"), 100.0),
    ("Llama-3.3-70B on two H200, weights from NFS", 70.6, StartUp(weights="nfs"), 157.0),
    ("Llama-3.3-70B on two H200, weights from a peer", 70.6, StartUp(weights="p2p"), 152.0),
)
"""Starts with a measured total, in that table, and the weights of each GPU."""


def read(path: Path) -> dict[tuple[str, str], Row]:
    """Rows by source and phase, the first of each; a range is taken at its middle."""
    with path.open() as file:
        rows = [_row(row) for row in csv.DictReader(file)]
    return {(row.source, row.phase): row for row in reversed(rows)}


def _row(row: Mapping[str, str]) -> Row:
    seconds = [float(part) for part in row["value"].split("-")]
    found = re.search(r"([\d.]+) (GiB|GB)(?!/s)", row["note"])
    gigabytes = float(found[1]) * (GIB / GIGA if found[2] == "GiB" else 1) if found else None
    return Row(row["source"], row["phase"], sum(seconds) / len(seconds), gigabytes)


def fitted(rows: Mapping[tuple[str, str], Row]) -> dict[str, Any]:
    """Seconds of each phase by choice, and GB/s of each GPU by where weights come from, with the rows that each is from."""
    init = {
        source: rows[source, phase].seconds
        for source, phase in ((SMALL, "init engine"), (EARLY, "init engine with compile"))
    }
    dynamo = {source: rows[source, "dynamo"].seconds for source in (SMALL, EARLY)}
    graphs = {source: rows[source, "graphs"].seconds for source in (SMALL, EARLY)}
    rest = [
        init[SMALL] - dynamo[SMALL] - graphs[SMALL],
        init[EARLY] - dynamo[EARLY] - rows[EARLY, "compile"].seconds - graphs[EARLY],
    ]
    return {
        "image_s": {
            "cached": _kept([0.0], "the node has it"),
            "streamed": _of(rows, (POD, "image pull streamed")),
            "pulled": _of(rows, (POD, "image pull unstreamed")),
        },
        "process_s": _of(rows, (POD, "imports")),
        "weights_gb_per_s": {
            "typical": _speeds(
                rows, (POD, "model load total"), (P2P, "weights NFS default"), (P2P, "weights local NVMe"),
                (P2P, "weights NFS"), (RTX, "weights"),
            ),
            "nfs": _speeds(rows, (P2P, "weights NFS default")),
            "fastsafetensors": _speeds(rows, (P2P, "weights NFS fastsafetensors")),
            "nvme": _speeds(rows, (P2P, "weights local NVMe")),
            "p2p": _speeds(rows, (P2P, "weights P2P RDMA")),
        },
        "compile_s": {
            "cold": _kept(
                [dynamo[EARLY] + rows[EARLY, "compile"].seconds, rows[RTX, "compile cold"].seconds],
                f"{EARLY} dynamo and compile; {RTX} compile cold",
            ),
            "cached": _of(rows, (RTX, "compile cached"), ("vllm#16848", "load compiled graphs from cache")),
        },
        "graphs_s": _of(rows, (SMALL, "graphs"), (EARLY, "graphs"), (POD, "of which graph capture")),
        "profiling_s": _kept(rest, f"{SMALL} and {EARLY}: what their engines' init has beyond compilation and graphs"),
    }  # fmt: skip


def _of(rows: Mapping[tuple[str, str], Row], *keys: tuple[str, str]) -> dict[str, Any]:
    return _kept([rows[key].seconds for key in keys], "; ".join(" ".join(key) for key in keys))


def _speeds(rows: Mapping[tuple[str, str], Row], *keys: tuple[str, str]) -> dict[str, Any]:
    """GB/s of each GPU: 70.6 GB, where the row has none, as the first of its series says."""
    size_gb = rows[P2P, "weights NFS default"].gigabytes
    speeds = [(rows[key].gigabytes or size_gb or 0.0) / rows[key].seconds for key in keys]
    return _kept(speeds, "; ".join(" ".join(key) for key in keys))


def _kept(values: list[float], source: str) -> dict[str, Any]:
    return {"value": round(median(values), 3), "n": len(values), "source": source}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
