"""Memory that `servecast simulate` takes for each request: `python -m benchmarks.footprint [--requests N] [--traces FOLDER]`.

The Azure conversations are tiled to N requests and to three times as many; each length is a process of its own, whose peak
resident memory counts less that of a bare interpreter. What one more request takes is the slope between both. At their own
rate nearly every step computes something else, at four times that the replica is saturated. Exits 1 above MOST_BYTES.
"""

import argparse
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.speed import CASES, azure, whole_process
from sim.units import MIB
from sim.workload.names import RowNames
from sim.workload.tile import tile
from sim.workload.trace import Trace

MOST_BYTES = 250
BARE = 'print(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])'


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.footprint", description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000, help="length of the shorter trace")
    parser.add_argument("--rates", type=float, nargs="+", default=[1.0, 4.0], help="times the trace's own rate")
    parser.add_argument("--traces", type=Path, default=Path("../shared/traces"))
    arguments = parser.parse_args()
    bare_mb = int(subprocess.check_output([sys.executable, "-c", BARE], text=True)) / 1024
    print(f"{'':12}{'requests':>12}{'CPU s':>8}{'peak MB':>9}{'bytes a request':>17}{'one more':>10}")
    most = [row(rate, arguments.traces, arguments.requests, bare_mb) for rate in arguments.rates]
    return int(max(most) > MOST_BYTES)


def row(rate: float, folder: Path, num_requests: int, bare_mb: float) -> float:
    """Bytes that one more request takes at that rate."""
    peaks_mb = []
    for count in (num_requests, 3 * num_requests):
        cpu_s, peak_mb = whole_process(tiled(azure(folder, rate), count), CASES["azure x1, million"])
        peaks_mb.append(peak_mb)
        slope = (peaks_mb[-1] - peaks_mb[0]) * MIB / (2 * num_requests)
        line = f"azure x{rate:<5g}{count:>12,}{cpu_s:>8.1f}{peak_mb:>9.0f}{(peak_mb - bare_mb) * MIB / count:>17.0f}"
        print(line + (f"{slope:>10.0f}" if len(peaks_mb) > 1 else ""), flush=True)
    return slope


def tiled(trace: Trace, num_requests: int) -> Trace:
    """As many requests, with names by row, as those of the Azure traces are."""
    longer = tile(trace, -(-num_requests // len(trace))).first(num_requests)
    return replace(longer, request_id=RowNames(range(num_requests)))


if __name__ == "__main__":
    sys.exit(main())
