"""How fast a stream is replayed and how much memory it takes: `python -m benchmarks.streaming [REQUESTS]`, of the compiled engine.

Requests are drawn on the fly, short ones: what each costs beside its tokens is what counts where there are many.
"""

import resource
import sys
import time
from collections.abc import Iterator

import sim
from sim.workload.lengths import Lognormal
from sim.workload.parts import trace_parts
from sim.workload.spec import WorkloadSpec
from sim.workload.trace import Trace

ROWS_BETWEEN_LINES = 1 << 20


def main(num_requests: int = 1_000_000) -> None:
    spec = WorkloadSpec(
        num_requests=num_requests,
        request_rate=200.0,
        prompt_tokens=Lognormal(60, 0.8, 1024),
        output_tokens=Lognormal(5, 0.6, 64),
    )
    result = sim.simulate("Llama-3.1-8B", "h100-sxm", told(trace_parts(spec)))
    seconds = time.process_time()
    figures = {name: result.summary[name] for name in ("completed", "total_output_tokens", "num_steps", "p99_ttft_ms")}
    print(f"{figures}")
    print(f"{num_requests / seconds:,.0f} requests a CPU second, {peak_mb():,.0f} MB at most")


def told(parts: Iterator[Trace]) -> Iterator[Trace]:
    """The parts; a line for each million of requests that were sent."""
    num_sent = 0
    for part in parts:
        if num_sent % ROWS_BETWEEN_LINES == 0:
            print(
                f"{num_sent:>12,} requests, {time.process_time():>8,.1f} CPU s, {peak_mb():>6,.0f} MB at most",
                flush=True,
            )
        num_sent += len(part)
        yield part


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
