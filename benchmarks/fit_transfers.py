"""Fits what it costs to move KV: `python -m benchmarks.fit_transfers ../shared/fleet/measured/kv_transfer_measured.csv`.

Two numbers over the five measured transfers of known size and number of descriptors, by least squares of relative errors:
the bandwidth of their network cards, which serves the fit alone, and the time a descriptor adds. And a ratio: what copies
between CPU and GPU reach of PCIe's peak. Prints each transfer's error when it is left out of the fit, and writes
`sim/memory/transfers.json`.
"""

import csv
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

import sim.memory.transfers as package
from sim.specs.hardware import load_gpu
from sim.units import GIGA, KIB, MEGA, MIB, MS

SIZE = re.compile(r"NIXL/UCX 1 NIC (\d+) (KiB|MiB)")
IN_PARTS = re.compile(r"(\d+) MB, (\d+) descriptors")


class Measured(NamedTuple):
    """A transfer, as it was measured."""

    source: str
    num_bytes: float
    num_descriptors: int
    duration_s: float


def main(path: Path) -> None:
    with path.open() as file:
        rows = list(csv.DictReader(file))
    transfers = measured_transfers(rows)
    card_bytes_per_s, descriptor_s = fit(transfers)
    print(f"{card_bytes_per_s / GIGA:.2f} GB/s a card, {descriptor_s * 1e6:.2f} us a descriptor")
    errors = []
    for number, held_out in enumerate(transfers):
        error = predicted(fit([*transfers[:number], *transfers[number + 1 :]]), held_out) / held_out.duration_s - 1
        errors.append(abs(error))
        print(
            f"- {held_out.source}, {held_out.num_bytes / MEGA:.2f} MB: {held_out.duration_s / MS:.3f} ms, {error:+.0%}"
        )
    copied_gb_s = next(float(row["value"]) for row in rows if row["what"] == "CPU<->GPU DMA one way")
    found = {
        "descriptor_s": {
            "value": float(f"{descriptor_s:.3g}"),
            "source": "fitted by fit_transfers.py to 4 NIXL/UCX transfers (LMCache PR4161) and 1 of vLLM #50913; "
            f"left out: median error {np.median(errors):.0%}, worst {max(errors):.0%}",
        },
        "pcie_efficiency": {
            "value": round(copied_gb_s * GIGA / load_gpu("h100-sxm").pcie_bytes_per_s, 3),
            "source": f"one way, {copied_gb_s:g} GB/s of PCIe 5.0 x16's 64 GB/s on H100: vLLM blog of 2026-01-08",
        },
    }
    package.PATH.write_text(json.dumps(found, indent=2) + "\n")


def measured_transfers(rows: Sequence[dict[str, str]]) -> list[Measured]:
    """Those whose bytes and descriptors are known."""
    found = []
    for row in rows:
        if size := SIZE.fullmatch(row["what"]):
            num_bytes = int(size[1]) * (KIB if size[2] == "KiB" else MIB)
            found.append(Measured(row["source"], num_bytes, 1, num_bytes / (float(row["value"]) * GIGA)))
        elif (parts := IN_PARTS.fullmatch(row["context"])) and row["unit"] == "ms":
            found.append(Measured(row["source"], int(parts[1]) * MEGA, int(parts[2]), float(row["value"]) * MS))
    return found


def fit(transfers: Sequence[Measured]) -> tuple[float, float]:
    """Bytes/s of a card and seconds a descriptor."""

    def errors(logs: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> list[float]:
        fitted = (float(np.exp(logs[0])), float(np.exp(logs[1])))
        return [predicted(fitted, transfer) / transfer.duration_s - 1 for transfer in transfers]

    card_bytes_per_s, descriptor_s = np.exp(least_squares(errors, np.log([12 * GIGA, 1e-5])).x)
    return float(card_bytes_per_s), float(descriptor_s)


def predicted(fitted: tuple[float, float], transfer: Measured) -> float:
    card_bytes_per_s, descriptor_s = fitted
    return transfer.num_bytes / card_bytes_per_s + transfer.num_descriptors * descriptor_s


if __name__ == "__main__":
    main(Path(sys.argv[1]))
