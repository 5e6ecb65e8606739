"""How far the memory plan is from what vLLM logged: every activation, non-torch and graph point, then block counts.

    python -m benchmarks.memory [RUNS.json]

Exits 1 when the median error of the explained block counts exceeds 1.5 % or one of them 6 %.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.memory_points import POINTS, SERVING, LoggedBlocks, logged_blocks, model_of, name_of
from sim.memory.activations import activation_peak, activation_shape
from sim.memory.cuda_graphs import graph_bytes
from sim.memory.parameters import memory_parameters
from sim.memory.plan import plan_memory
from sim.memory.profiling import non_torch_bytes
from sim.specs.hardware import load_gpu
from sim.units import GIB

SEQS, TOKENS = 1024, 8192  # the limits of the logged activation peaks
LARGEST_MEDIAN, LARGEST = 1.5, 6.0  # per cent of the block count


class Comparison(NamedTuple):
    """One figure as predicted and as measured; `note` qualifies it."""

    name: str
    predicted: float
    measured: float
    note: str = ""

    @property
    def error_percent(self) -> float:
        return 100 * (self.predicted / self.measured - 1)


def main() -> int:
    show("activation peak, GiB", activations())
    show("non-torch memory, GiB", non_torch())
    show("CUDA graphs taken, GiB", graphs("taken"))
    show("CUDA graphs as vLLM estimates them, GiB", graphs("estimated"))
    print("graph points without a prediction:", *POINTS["unmodelled_graphs"], sep="\n    ", end="\n\n")
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else SERVING
    if not path.is_file():
        print(f"no block counts: {path} is not here")
        return 0
    counts = block_counts(logged_blocks(path))
    show("KV blocks", counts)
    errors = [abs(count.error_percent) for count in counts if not count.note]
    print(f"explained block counts: median {median(errors):.2f} %, largest {max(errors):.2f} %")
    return int(median(errors) > LARGEST_MEDIAN or max(errors) > LARGEST)


def activations() -> list[Comparison]:
    return [Comparison(name_of(point), predicted_activation(point), point["gib"]) for point in POINTS["activation"]]


def predicted_activation(point: dict[str, Any]) -> float:
    shape = activation_shape(model_of(point), point.get("tp", 1))
    if "first_stage_of" in point:
        shape = shape._replace(logits=0)
    parameters = memory_parameters().profiling_for(point["version"])
    return activation_peak(shape, TOKENS, SEQS, parameters).total_bytes / GIB


def non_torch() -> list[Comparison]:
    gpu = load_gpu("h100-sxm")
    return [
        Comparison(
            f"H100 TP{point['tp']}",
            non_torch_bytes(gpu, point["tp"], memory_parameters().profiling_for(point["version"])) / GIB,
            point["gib"],
        )
        for point in POINTS["non_torch"]
    ]


def graphs(kind: str) -> list[Comparison]:
    parameters = memory_parameters().graphs_taken if kind == "taken" else memory_parameters().graphs_estimated
    return [
        Comparison(
            f"{name_of(point)} {point['version']} {point['graphs']} graphs",
            graph_bytes(model_of(point), point["graphs"], parameters) / GIB,
            point[f"{kind}_gib"],
            "" if point["fitted"] else "not fitted",
        )
        for point in POINTS["graphs"]
        if f"{kind}_gib" in point
    ]


def block_counts(starts: Iterable[LoggedBlocks]) -> list[Comparison]:
    return [
        Comparison(
            f"{start.name} {start.engine.vllm_version}",
            plan_memory(start.model, start.gpu, start.engine).num_gpu_blocks,
            start.num_gpu_blocks,
            "" if start.is_explained else "not explained",
        )
        for start in starts
    ]


def show(title: str, comparisons: list[Comparison]) -> None:
    print(f"{title:66s} {'predicted':>10s} {'measured':>10s} {'error':>8s}")
    for each in comparisons:
        digits = 0 if each.measured > 100 else 2
        figures = f"{each.predicted:10,.{digits}f} {each.measured:10,.{digits}f} {each.error_percent:+7.1f}%"
        print(f"    {each.name:62s} {figures}  {each.note}".rstrip())
    print(f"    median of absolute errors {median(abs(each.error_percent) for each in comparisons):.2f} %\n")


if __name__ == "__main__":
    sys.exit(main())
