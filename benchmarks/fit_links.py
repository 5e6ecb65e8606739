"""Fits what a message from one GPU to another takes, link by link: `python -m benchmarks.fit_links ../shared/comm`.

A message takes `base_us` and its bytes at a share of the link's bandwidth, by least squares of relative errors. Over NVLink
and over the network it was measured as send and receive (Vidur, MIT); over PCIe as an all-gather of two GPUs
(AIConfigurator, Apache-2.0), each of which sends the other half of what is gathered. Writes `link_fits.json`.
"""

import json
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from sim.specs.hardware import load_gpu
from sim.units import GIGA, MS, US

FITS = Path(__file__).with_name("link_fits.json")
ETHERNET_BYTES_PER_S = 25e9 / 8
LARGEST_BYTES = 64e6  # of an all-gather: a step's message is far smaller
HALF_BYTES = 2


class Link(NamedTuple):
    """Where messages were measured: whose link, and its peak a GPU."""

    source: str
    peak_bytes_per_s: float


def main(folder: Path) -> None:
    sent = pd.read_csv(folder / "vidur_send_recv.csv.gz")
    gathered = pd.read_csv(folder / "aic_nccl.csv.gz")
    h100, a100 = load_gpu("h100-sxm"), load_gpu("a100-sxm-80gb")
    fits = {
        "link": _sent(sent, "h100_dgx", 2, Link("NVLink of a DGX H100", h100.link_bytes_per_s)),
        "link_a100": _sent(sent, "a100_dgx", 2, Link("NVLink of a DGX A100", a100.link_bytes_per_s)),
        "infiniband": _sent(sent, "h100_dgx", 1, Link("InfiniBand between two DGX H100", 50 * GIGA)),
        "ethernet": _sent(sent, "a40_pairwise_nvlink", 1, Link("25 Gb/s between two A40 nodes", ETHERNET_BYTES_PER_S)),
        "pcie": _gathered(gathered, "l40s", Link("PCIe 4.0 of L40S", load_gpu("l40s").pcie_bytes_per_s)),
        "pcie_5": _gathered(
            gathered, "rtx_pro_6000_server", Link("PCIe 5.0 of RTX PRO 6000", load_gpu("rtx-pro-6000").pcie_bytes_per_s)
        ),
    }
    FITS.write_text(json.dumps(fits, indent=2) + "\n", encoding="utf-8")
    for name, found in fits.items():
        print(f"{name}: {found}")


def _sent(table: pd.DataFrame, system: str, gpus_per_node: int, link: Link) -> dict[str, float | str]:
    rows = table[(table.system == system) & (table.devices_per_node == gpus_per_node)]
    times_ms = rows.groupby("size_elems").median_ms.median()  # the column holds bytes
    return _fit(times_ms, 1.0, link, "Vidur's send and receive")


def _gathered(table: pd.DataFrame, system: str, link: Link) -> dict[str, float | str]:
    is_this = (table.system == system) & (table.op_name == "all_gather") & (table.nccl_dtype == "half")
    times_ms = table[is_this & (table.num_gpus == 2)].groupby("message_size").latency.median()
    return _fit(
        times_ms[times_ms.index * HALF_BYTES <= LARGEST_BYTES],
        HALF_BYTES / 2,
        link,
        "AIConfigurator's all-gather of two",
    )


def _fit(times_ms: "pd.Series[float]", bytes_each: float, link: Link, what: str) -> dict[str, float | str]:
    times_s = times_ms.to_numpy() * MS
    num_bytes = times_ms.index.to_numpy() * bytes_each
    terms = np.column_stack((np.ones(len(times_s)), num_bytes)) / times_s[:, None]
    (base_s, s_per_byte), *_ = np.linalg.lstsq(terms, np.ones(len(times_s)))
    errors = np.abs(terms @ (base_s, s_per_byte) - 1)
    return {
        "base_us": round(float(base_s) / US, 1),
        "efficiency": round(1 / float(s_per_byte) / link.peak_bytes_per_s, 3),
        "source": f"{what}, {link.source}: median error {np.median(errors):.0%}, P90 {np.quantile(errors, 0.9):.0%}",
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
