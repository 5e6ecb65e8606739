"""What a fitted workload forecasts beside the trace itself: `python -m benchmarks.workload_fit TRACE=SCALE,SCALE,... ...`.

Llama-3.1-8B on an H100, the trace and what is drawn from its workload at the same multiples of its rate; errors of throughput
and of the 99th percentiles, for each of three seeds, in per cent of the trace's own figures.
"""

import argparse
from collections.abc import Iterator

import sim
from sim.workload.fit import fit
from sim.workload.generate import generate
from sim.workload.readers import read_trace
from sim.workload.trace import Trace

FIGURES = ("output_throughput", "mean_ttft_ms", "p99_ttft_ms", "p99_tpot_ms", "p99_e2el_ms")
SEEDS = (1, 2, 3)


def _figures(trace: Trace, scale: float) -> dict[str, float]:
    """Open loops both: the trace's turns came when they came."""
    run = sim.simulate("Llama-3.1-8B", "h100-sxm", trace, rate_scale=scale, open_loop=True, intervals=False)
    return {name: run.summary[name] for name in FIGURES} | {"gpu_busy": run.summary["gpu_busy_fraction"]}


def report(cases: list[str]) -> Iterator[str]:
    """A line a trace, scale and seed."""
    yield f"{'':44}{'busy':>6}" + "".join(f"{name.removesuffix('_ms'):>19}" for name in FIGURES)
    for case in cases:
        path, _, scales = case.partition("=")
        trace = read_trace(path)
        workload = fit(trace)
        for scale in map(float, scales.split(",")):
            own = _figures(trace, scale)
            values = "".join(f"{own[name]:>19,.1f}" for name in FIGURES)
            yield f"{path.rpartition('/')[2]:36}x {scale:<6g}{own['gpu_busy']:>6.2f}{values}"
            for seed in SEEDS:
                found = _figures(generate(workload, seed), scale)
                errors = "".join(f"{found[name] / own[name] - 1:>+19.1%}" for name in FIGURES)
                yield f"{'':38}seed {seed}{found['gpu_busy']:>6.2f}{errors}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="+", metavar="TRACE=SCALES")
    for line in report(parser.parse_args().cases):
        print(line, flush=True)


if __name__ == "__main__":
    main()
