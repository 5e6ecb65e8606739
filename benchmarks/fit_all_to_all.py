"""Fits what ranks take to exchange tokens before and after experts: `python -m benchmarks.fit_all_to_all ../shared/comm`.

Tables of AIConfigurator (Apache-2.0): NCCL's all-gather and reduce-scatter, and DeepEP's kernels on 20 SMs as vLLM runs them. By least squares of
relative errors; prints what stands in `sim/steptime/all_to_all.py`, with its errors.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from sim.specs.hardware import HardwareProfile, load_gpu
from sim.steptime.all_to_all import SCALE_SHARE, num_reached
from sim.units import US

SYSTEMS = {
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200-sxm",
    "b200_sxm": "b200-sxm",
    "b300_sxm": "b300-sxm",
    "a100_sxm": "a100-sxm-80gb",
}
HALF_BYTES = 2
LARGEST_BYTES = 2**28
SMS = 20  # vLLM's DeepEP high-throughput kernels


def main(folder: Path) -> None:
    """Print every fit."""
    _nccl(pd.read_csv(folder / "aic_nccl.csv.gz"))
    low = pd.read_csv(folder / "aic_deepep_ll.csv.gz")
    low = low.assign(dispatch=low.dispatch_avg_t_us * US, combine=low.combine_avg_t_us * US)
    _deepep("low latency", low, 2)
    high = pd.read_csv(folder / "aic_deepep_normal.csv.gz")
    high = high[(high.dispatch_sms == SMS) & (high.num_token <= 32768)]
    high = high.assign(
        dispatch=(high.dispatch_transmit_us + high.dispatch_notify_us) * US,
        combine=(high.combine_transmit_us + high.combine_notify_us) * US,
    )
    _deepep("high throughput", high, 1)


def _nccl(table: pd.DataFrame) -> None:
    for system, name in SYSTEMS.items():
        gpu = load_gpu(name)
        rows = table[
            (table.system == system)
            & (table.nccl_dtype == "half")
            & table.op_name.isin(["all_gather", "reduce_scatter"])
        ]
        rows = rows[(rows.message_size >= 1024) & (rows.message_size * HALF_BYTES <= LARGEST_BYTES)]
        sent = rows.message_size * HALF_BYTES * (rows.num_gpus - 1) / rows.num_gpus
        terms = np.column_stack((np.ones(len(rows)), rows.num_gpus - 1, sent / gpu.link_bytes_per_s))
        _print(f"NCCL {system}", terms, (rows.latency * 1e-3).to_numpy())


def _deepep(kind: str, table: pd.DataFrame, least: int) -> None:
    for (system, nodes), rows in table.groupby(["system", "node_num"]):
        if system not in SYSTEMS:
            continue
        gpu = load_gpu(SYSTEMS[str(system)])
        rate = gpu.link_bytes_per_s if nodes == 1 else gpu.network_bytes_per_s
        for phase, num_bytes in (("dispatch", SCALE_SHARE), ("combine", HALF_BYTES)):
            copies = _copies(rows, int(str(nodes)), gpu, sends_each=least == 2)
            terms = np.column_stack((np.ones(len(rows)), rows.num_token * rows.hidden_size * num_bytes * copies / rate))
            _print(f"DeepEP {kind} {phase}, {system} x {nodes} nodes", terms, rows[phase].to_numpy())


def _copies(rows: pd.DataFrame, nodes: int, gpu: HardwareProfile, *, sends_each: bool) -> "pd.Series[float]":
    """How often a token goes over the slowest link: to each of its experts, or once to each GPU, or node, that has any."""
    if sends_each:
        return rows.num_topk * (1.0 if nodes == 1 else (nodes - 1) / nodes)
    places = gpu.gpus_per_node if nodes == 1 else nodes
    reached = rows.num_topk.map(lambda topk: num_reached(topk, places))
    return reached if nodes == 1 else reached * (nodes - 1) / nodes


def _print(
    name: str,
    terms: "np.ndarray[tuple[int, int], np.dtype[np.float64]]",
    times_s: "np.ndarray[tuple[int], np.dtype[np.float64]]",
) -> None:
    relative = terms / times_s[:, None]
    found, *_ = np.linalg.lstsq(relative, np.ones(len(times_s)))
    errors = np.abs(relative @ found - 1)
    constants = ", ".join(f"{value / US:.1f} us" for value in found[:-1])
    print(
        f"{name}: {constants}, efficiency {1 / found[-1]:.2f}; median error {np.median(errors):.0%}, P90 {np.quantile(errors, 0.9):.0%}"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
