"""How far the memory plan is from what vLLM logged: every activation, non-torch and graph point, then block counts.

    python -m benchmarks.memory [RUNS.json]

Exits 1 when the median error of the explained block counts exceeds 1.5 % or one of them 6 %.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

from benchmarks.memory_points import (
    POINTS,
    SERVING,
    LoggedBlocks,
    engine_of,
    graphs_of,
    logged_blocks,
    model_of,
    name_of,
)
from sim.memory.activations import activation_peak, activation_shape
from sim.memory.cuda_graphs import estimated_bytes, graph_layers, taken_bytes
from sim.memory.design import DESIGN, design_graph_bytes
from sim.memory.parameters import memory_parameters
from sim.memory.plan import plan_memory
from sim.memory.profiling import non_torch_bytes
from sim.memory.weights import weight_parts
from sim.specs.hardware import load_gpu
from sim.specs.model import ModelSpec
from sim.specs.stages import Stage, pipeline_stages
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
    show("CUDA graphs by the original design's formula, GiB", graphs("design"))
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
    return [
        Comparison(name_of(point), predicted_activation(point), point["gib"], note_of("activation", point))
        for point in POINTS["activation"]
    ]


def predicted_activation(point: dict[str, Any]) -> float:
    model = model_of(point)
    shape = activation_shape(model, engine_of(model, point), first_stage(model, point))
    parameters = memory_parameters().profiling_for(point["version"])
    return activation_peak(shape, TOKENS, SEQS, parameters).total_bytes / GIB


def non_torch() -> list[Comparison]:
    gpu, model = load_gpu("h100-sxm"), model_of(POINTS["activation"][0])
    return [
        Comparison(
            f"H100 TP{point['tp']} PP{point.get('pp', 1)}",
            non_torch_bytes(gpu, engine_of(model, point), memory_parameters().profiling_for(point["version"])) / GIB,
            point["gib"],
        )
        for point in POINTS["non_torch"]
    ]


def first_stage(model: ModelSpec, point: dict[str, Any]) -> Stage:
    return pipeline_stages(model.num_layers, point.get("pp", 1))[0]


def graphs(kind: Literal["taken", "estimated", "design"]) -> list[Comparison]:
    """The design's figure stands beside what graphs took."""
    measured = "estimated_gib" if kind == "estimated" else "taken_gib"
    return [
        Comparison(graph_name(point), predicted_graphs(kind, point) / GIB, point[measured], note_of(kind, point))
        for point in POINTS["graphs"]
        if measured in point
    ]


def graph_name(point: dict[str, Any]) -> str:
    captured = graphs_of(point)
    return f"{name_of(point)} {point['version']} {len(captured.piecewise)}+{len(captured.full)} graphs"


def note_of(kind: str, point: dict[str, Any]) -> str:
    return "" if point.get("fitted", True) or kind == "design" else "not fitted"


def predicted_graphs(kind: str, point: dict[str, Any]) -> int:
    model, captured, parameters = model_of(point), graphs_of(point), memory_parameters()
    stage = first_stage(model, point)
    if kind == "design":
        parts = weight_parts(model, load_gpu("h100-sxm"), engine_of(model, point), stage)
        weights_bytes = sum(part.num_bytes for part in parts)
        return design_graph_bytes(weights_bytes, captured.piecewise or captured.full, DESIGN)
    if kind == "taken":
        return taken_bytes(captured, graph_layers(model, stage), parameters.graphs_taken)
    return estimated_bytes(captured, graph_layers(model, stage), parameters.graphs_estimated)


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
