"""Fits the memory model's parameters to logged start-up figures and writes them to sim/memory/parameters.json.

    python -m benchmarks.fit_memory

Everything is linear in the parameters once it is known whether sampler or widest layer is higher, so least squares,
weighted by how well each figure is known, is repeated until that no longer changes. Where only a block count was logged, the measured figure is
what the requested memory leaves after weights and blocks: activation and non-torch memory together.
"""

import json
from collections.abc import Iterable, Mapping
from statistics import mean
from typing import Any, NamedTuple

import numpy as np

from benchmarks.memory_points import POINTS, LoggedBlocks, engine_of, graphs_of, logged_blocks, model_of, name_of
from sim.memory.activations import FP32_BYTES, activation_shape
from sim.memory.cuda_graphs import graph_layers
from sim.memory.kv_cache import kv_cache_layout
from sim.memory.parameters import PATH
from sim.memory.weights import weight_parts
from sim.specs.model import ModelSpec
from sim.specs.stages import pipeline_stages
from sim.units import GIB

SEQS, TOKENS = 1024, 8192  # vLLM's defaults on an H100, under which the activation peaks were logged
ROUNDS = 20
PEAK_TOLERANCE = 0.02  # of a logged peak: repeated starts differ by about as much
REST_TOLERANCE_BYTES = 0.1 * GIB  # of a remainder, which carries the error of weights and non-torch memory
LOG_0_19 = "vLLM 0.19.0 start-up logs on H100 80GB (llm-d-planner accuracy report)"
LOG_0_15 = "vLLM 0.15 start-up: one activation peak (Qwen3-14B) and six block counts on H100"
SHARED_WITH_0_17 = (
    "fixed_activation_bytes",
    "hidden_copies",
    "multimodal_hidden_copies",
    "non_torch_pipeline_bytes",
)
SAMPLER = {"sampler_logits_copies": 4.0, "hidden_copies": 1.0}
"""What is there beside the widest layer, and about how much of it."""
NO_EXTRA = {"unlinked_gpu_bytes": 0.0}  # before 0.17
GRAPH_PARAMETERS = {
    "taken_gib": ("per_graph_bytes", "per_token_and_layer_bytes", "per_token_and_expert_layer_bytes"),
    "estimated_gib": ("per_graph_bytes", "per_layer_bytes", "per_expert_layer_bytes"),
}

FITTED = [point for point in POINTS["activation"] if point.get("fitted", True)]
Terms = Mapping[str, float]


class Equation(NamedTuple):
    """Known bytes + sum of coefficient x parameter + the higher of sampler and layer = measured bytes; hidden states are beside the sampler."""

    name: str
    known_bytes: float
    terms: Terms
    bytes_per_logits_copy: float
    hidden_bytes: float
    layer_bytes: float
    measured_bytes: float
    tolerance_bytes: float


def main() -> None:
    newer = solve([activation_equation(point) for point in FITTED if not is_old(point["version"])], {})
    newer |= non_torch()
    starts = [logged for logged in logged_blocks() if logged.is_explained]
    newer |= solve([block_equation(start) for start in starts if not is_old(start.engine.vllm_version)], newer)
    known = {name: newer[name] for name in SHARED_WITH_0_17} | NO_EXTRA
    old = [activation_equation(point) for point in FITTED if is_old(point["version"])]
    old += [block_equation(start) for start in starts if is_old(start.engine.vllm_version)]
    older = known | solve(old, known)
    write({"0.15": older, "0.17": newer}, {kind: fit_graphs(f"{kind}_gib") for kind in ("taken", "estimated")})


def is_old(version: str) -> bool:
    return version.startswith("0.15")


def activation_equation(point: dict[str, Any]) -> Equation:
    return equation(model_of(point), point, point["gib"] * GIB)


def equation(model: ModelSpec, point: dict[str, Any], measured_bytes: float) -> Equation:
    """A peak at `seqs` and `tokens`, vLLM's defaults where the point does not say; a first stage samples nothing."""
    stage = pipeline_stages(model.num_layers, point.get("pp", 1))[0]
    shape = activation_shape(model, engine_of(model, point), stage)
    tokens, seqs = point.get("tokens", TOKENS), point.get("seqs", SEQS)
    hidden_bytes = tokens * shape.hidden * shape.dtype_bytes
    return Equation(
        name_of(point),
        tokens * (shape.experts + shape.handed) * shape.dtype_bytes,
        {"fixed_activation_bytes": 1.0, "multimodal_hidden_copies": hidden_bytes * shape.multimodal},
        seqs * shape.logits * FP32_BYTES,
        hidden_bytes if shape.logits else 0.0,
        tokens * shape.layer * shape.dtype_bytes,
        measured_bytes,
        PEAK_TOLERANCE * measured_bytes,
    )


def block_equation(start: LoggedBlocks) -> Equation:
    engine, whole = start.engine, pipeline_stages(start.model.num_layers, 1)[0]
    weights = sum(part.num_bytes for part in weight_parts(start.model, start.gpu, engine, whole))
    blocks = (start.num_gpu_blocks + 0.5) * kv_cache_layout(start.model, engine).bytes_per_block  # floored by vLLM
    rest = start.gpu.memory_bytes * engine.gpu_memory_utilization - weights - blocks
    parallel = engine.tensor_parallel_size
    limits = {"model": start.name, "tokens": engine.max_num_batched_tokens, "seqs": engine.max_num_seqs, "tp": parallel}
    activation = equation(start.model, limits, rest)
    non_torch = {("non_torch_parallel_bytes" if parallel > 1 else "non_torch_bytes"): 1.0}
    unlinked = {"unlinked_gpu_bytes": 1.0} if start.gpu.num_linked_gpus == 1 else {}
    terms = {**activation.terms, **non_torch, **unlinked}
    return activation._replace(terms=terms, tolerance_bytes=REST_TOLERANCE_BYTES)


def solve(equations: list[Equation], known: Terms) -> dict[str, float]:
    """Weighted least squares for all parameters that are not in `known`."""
    names = list(dict.fromkeys(name for each in equations for name in (*each.terms, *SAMPLER)))
    names = [name for name in names if name not in known]
    beside = {name: known.get(name, start) for name, start in SAMPLER.items()}
    solution: dict[str, float] = {}
    for _ in range(ROUNDS):
        rows = [linear(each, names, known, beside) for each in equations]
        matrix, right = np.array([row for row, _ in rows]), np.array([value for _, value in rows])
        solution = dict(zip(names, map(float, np.linalg.lstsq(matrix, right, rcond=None)[0]), strict=True))
        beside = {name: solution.get(name, value) for name, value in beside.items()}
    return solution


def linear(each: Equation, names: Iterable[str], known: Terms, beside: Terms) -> tuple[list[float], float]:
    """One row and right-hand side, in units of its tolerance; the lower of sampler and layer drops out."""
    sampled = {"sampler_logits_copies": each.bytes_per_logits_copy, "hidden_copies": each.hidden_bytes}
    samples = sum(beside[name] * size for name, size in sampled.items()) >= each.layer_bytes
    terms = {**each.terms, **{name: size * samples for name, size in sampled.items()}}
    given = each.known_bytes + each.layer_bytes * (not samples)
    given += sum(value * terms.get(name, 0.0) for name, value in known.items())
    row = [terms.get(name, 0.0) / each.tolerance_bytes for name in names]
    return row, (each.measured_bytes - given) / each.tolerance_bytes


def non_torch() -> dict[str, float]:
    points = [(point["tp"], point.get("pp", 1), point["gib"] * GIB) for point in POINTS["non_torch"]]
    return {
        "non_torch_bytes": mean(value for tp, pp, value in points if tp == pp == 1),
        "non_torch_parallel_bytes": mean(value for tp, _, value in points if tp > 1),
        "non_torch_pipeline_bytes": mean(value for tp, pp, value in points if tp == 1 < pp),
    }


def fit_graphs(figure: str) -> dict[str, float]:
    """What graphs take by number and by tokens captured for each layer, what vLLM estimates by number alone."""
    points = [point for point in POINTS["graphs"] if point["fitted"] and figure in point]
    rows = [[term / (point[figure] * GIB) for term in graph_terms(point, figure)] for point in points]
    names = GRAPH_PARAMETERS[figure]
    solution = np.linalg.lstsq(np.array(rows), np.ones(len(rows)), rcond=None)[0]
    return dict(zip(names, map(float, solution), strict=True))


def graph_terms(point: dict[str, Any], figure: str) -> tuple[int, int, int]:
    """Of all graphs: one each, each layer, each layer with experts; weighted by size where the figure is what they take."""
    model, graphs = model_of(point), graphs_of(point)
    layers = graph_layers(model, pipeline_stages(model.num_layers, 1)[0])
    weight = graphs.num_tokens if figure == "taken_gib" else graphs.num_graphs
    return graphs.num_graphs, weight * layers.num_layers, weight * layers.num_expert_layers


def write(profiling: dict[str, dict[str, float]], graphs: dict[str, dict[str, float]]) -> None:
    """The table that the package reads, each value with what it was fitted on."""
    sources = {"0.15": LOG_0_15, "0.17": LOG_0_19}
    data = {
        "written_by": "benchmarks/fit_memory.py",
        "profiling": {
            version: {name: sourced(values[name], source_of(name, version, sources)) for name in sorted(values)}
            for version, values in profiling.items()
        },
        "graphs": {
            kind: {name: sourced(value, f"{LOG_0_19}; Qwen3-Next on H200, 0.10.2") for name, value in values.items()}
            for kind, values in graphs.items()
        },
    }
    PATH.write_text(json.dumps(data, indent=1) + "\n")
    print(PATH.read_text())


def source_of(name: str, version: str, sources: Mapping[str, str]) -> str:
    if name == "unlinked_gpu_bytes" and version == "0.15":
        return "a log of Llama-3.1-8B on a 48-GB card, vLLM 0.15.1: what is left after weights and KV cache has no room for it"
    if name == "unlinked_gpu_bytes":
        return (
            "one block count: Llama-3.1-8B on an RTX 4090, vLLM 0.19.0; kernels compiled while vLLM profiles stay loaded "
            "and count as non-torch memory (vLLM pull request 49892)"
        )
    return sources["0.17" if name in SHARED_WITH_0_17 else version]


def sourced(value: float, source: str) -> dict[str, float | str]:
    return {"value": float(f"{value:.6g}"), "source": source}


if __name__ == "__main__":
    main()
