"""Measured runs with experts on several GPUs, replayed: `python -m benchmarks.ranks ../shared`.

Closed loops of InferenceX, single runs each: `measured/closed_loop.json`, where expert parallelism or data-parallel attention is on, with the arguments of its
scripts where there are any (closed_loops.py); and `fleet/measured/inferencex_token_position_vllm.csv`, MiniMax-M2.5 on eight H200s, whose TP8 + EP has the arguments of
`inferencex_args/minimaxm2.5_fp8_h200.sh`. Prints the median time per output token and to the first token, measured and
simulated, and the median error of each deployment.
"""

import csv
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import sim
from sim.errors import SimError
from sim.measure.published import completed
from sim.measure.replay import replay
from sim.measure.runs import ClosedLoop, Run, read_runs
from sim.units import MS
from sim.workload.trace import Trace

VERSION = "0.19.0"
H200_ENGINE = sim.EngineConfig(
    enable_expert_parallel=True,
    gpu_memory_utilization=0.95,
    max_model_len=40960,
    max_num_seqs=512,
    max_num_batched_tokens=32768,
    kv_cache_dtype="fp8",
    cudagraph_mode="PIECEWISE",
    enable_prefix_caching=False,
)
LAYOUTS: dict[str, dict[str, Any]] = {"tep8": {"tensor_parallel_size": 8}, "dep8": {"data_parallel_size": 8}}


class Point(NamedTuple):
    """A run: (TPOT, TTFT) in ms as measured, and as simulated, medians or else means."""

    deployment: str
    load: str
    measured: tuple[float, float]
    simulated: tuple[float, float]


def main(folder: Path) -> None:
    """Print every run and each deployment's median errors."""
    deployments: defaultdict[str, list[Point]] = defaultdict(list)
    for point in (*closed_loops(folder), *eight_h200(folder)):
        deployments[point.deployment].append(point)
    for deployment, points in deployments.items():
        print(deployment)
        for _, load, measured, simulated in points:
            cells = [f"{was:9.1f}{is_:9.1f}{is_ / was - 1:+8.0%}" for was, is_ in zip(measured, simulated, strict=True)]
            print(f"  {load:28}{''.join(cells)}")
        medians = np.median([np.abs(np.array(point.simulated) / point.measured - 1) for point in points], axis=0)
        print(f"  median error: TPOT {medians[0]:.0%}, TTFT {medians[1]:.0%} of {len(points)} runs")


def closed_loops(folder: Path) -> Iterator[Point]:
    """Those with experts on several GPUs; the others are said to be left out."""
    for run in completed(read_runs(folder / "measured" / "closed_loop.json")):
        layout = (run.engine.get("tensor_parallel_size", 1), run.engine.get("data_parallel_size", 1))
        if not run.engine.get("enable_expert_parallel") or not isinstance(run.workload, ClosedLoop):
            continue
        name = f"{run.model.split('/')[-1]} on {run.gpu}, TP{layout[0]} x DP{layout[1]} + EP, vLLM {run.vllm_version}"
        try:
            yield _replayed(run, name, run.workload)
        except SimError as error:
            print(f"left out: {run.id}, {name}: {str(error)[:90]}")


def _replayed(run: Run, name: str, load: ClosedLoop) -> Point:
    simulated, (measured,) = replay(run).figures[None], run.measured
    kind = "p50" if "tpot_p50" in measured.figures else "mean"
    tpot, ttft = f"tpot_{kind}", f"ttft_{kind}"
    low, high = load.prompt_tokens.uniform
    return Point(
        name,
        f"{load.concurrency} at a time, {low}-{high} in",
        (measured.figures[tpot], measured.figures[ttft]),
        (simulated[tpot], simulated[ttft]),
    )


def eight_h200(folder: Path) -> Iterator[Point]:
    """MiniMax-M2.5, prompts of exactly so many tokens."""
    with (folder / "fleet/measured/inferencex_token_position_vllm.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["run"].startswith("minimax"):
                yield _on_h200(row)


def _on_h200(row: Mapping[str, str]) -> Point:
    count, concurrency = int(row["num_prompts"]), int(row["conc"])
    load = Trace(
        request_id=tuple(f"r{number}" for number in range(count)),
        arrival_s=np.zeros(count),
        prompt_tokens=np.full(count, int(row["isl"])),
        output_tokens=np.full(count, int(row["osl"])),
        source="InferenceX",
    )
    layout = row["layout"]
    engine = replace(H200_ENGINE, **LAYOUTS[layout])
    found = sim.simulate(
        row["model_id"],
        "h200-sxm",
        load,
        engine=engine,
        vllm_version=VERSION,
        max_concurrency=concurrency,
        expert_routing="uniform",  # as for all closed loops of random tokens
        intervals=False,
    ).summary
    name = {"tep8": "TP8 + EP", "dep8": "DP8 + EP (arguments unknown)"}[layout]
    return Point(
        f"MiniMax-M2.5 on 8 x h200-sxm, {name}",
        f"{concurrency} at a time, {row['isl']} in",
        (float(row["median_tpot"]) / MS, float(row["median_ttft"]) / MS),
        (found["median_tpot_ms"], found["median_ttft_ms"]),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
