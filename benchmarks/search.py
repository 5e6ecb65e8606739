"""How long a search takes: `python -m benchmarks.search [TRACE] [--requests N] [--workers N]`.

Two hundred candidates of the default space on the first 10,000 requests of the Azure conversation trace, on two workers.
"""

import argparse
import os
import platform
import time

import sim
from sim.search.runner import Progress
from sim.workload.trace import Trace

DEFAULT_TRACE = "../shared/traces/azure_llm_2023_conv.csv"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", nargs="?", default=DEFAULT_TRACE)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--trials", type=int, default=200)
    given = parser.parse_args()
    trace = sim.read_trace(given.trace, limit=given.requests)
    print(f"{len(trace):,} requests, {given.trials} candidates, {given.workers} workers, {_machine()}")
    for objective in ("latency", "throughput"):
        print(f"{objective}: {_seconds(trace, objective, given.trials, given.workers)}")


def _seconds(trace: Trace, objective: str, trials: int, workers: int) -> str:
    """Wall time in all and by phase, and what won."""
    started_s, phases = time.perf_counter(), dict[str, float]()

    def note(progress: Progress) -> None:
        phases.setdefault(progress.phase, time.perf_counter() - started_s)

    found = sim.optimize(
        "Llama-3.1-8B", "h100-sxm", trace, objective=objective, slo=["ttft_p99=500ms"], trials=trials,
        workers=workers, progress=note,
    )  # fmt: skip
    wall_s = time.perf_counter() - started_s
    begun = ", ".join(f"{phase} from {at_s:.1f} s" for phase, at_s in phases.items())
    return f"{wall_s:.1f} s ({begun}); {found.summary['evaluated']} tried; {found.best['serve_command']}"


def _machine() -> str:
    return f"{os.cpu_count()} x {platform.machine()}, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}"


if __name__ == "__main__":
    main()
