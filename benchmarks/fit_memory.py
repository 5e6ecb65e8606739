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

from benchmarks.memory_points import POINTS, LoggedBlocks, logged_blocks, model_of, name_of
from sim.memory.activations import FP32_BYTES, activation_shape
from sim.memory.kv_cache import kv_cache_layout
from sim.memory.parameters import PATH
from sim.memory.weights import weight_parts
from sim.specs.model import ModelSpec
from sim.units import GIB

SEQS, TOKENS = 1024, 8192  # vLLM's defaults on an H100, under which the activation peaks were logged
ROUNDS = 20
PEAK_TOLERANCE = 0.02  # of a logged peak: repeated starts differ by about as much
REST_TOLERANCE_BYTES = 0.1 * GIB  # of a remainder, which carries the error of weights and non-torch memory
LOG_0_19 = "vLLM 0.19.0 start-up logs on H100 80GB (llm-d-planner accuracy report)"
LOG_0_15 = "vLLM 0.15 start-up: one activation peak (Qwen3-14B) and six block counts on H100"
SHARED_WITH_0_17 = ("fixed_activation_bytes", "hidden_copies", "multimodal_hidden_copies", "unlinked_gpu_bytes")

Terms = Mapping[str, float]


class Equation(NamedTuple):
    """Known bytes + sum of coefficient x parameter + the higher of sampler and layer = measured bytes."""

    name: str
    known_bytes: float
    terms: Terms
    bytes_per_logits_copy: float
    layer_bytes: float
    measured_bytes: float
    tolerance_bytes: float


def main() -> None:
    newer = solve([activation_equation(point) for point in POINTS["activation"] if not is_old(point["version"])], {})
    newer |= non_torch()
    starts = [logged for logged in logged_blocks() if logged.is_explained]
    newer |= solve([block_equation(start) for start in starts if not is_old(start.engine.vllm_version)], newer)
    known = {name: newer[name] for name in SHARED_WITH_0_17}
    old = [activation_equation(point) for point in POINTS["activation"] if is_old(point["version"])]
    old += [block_equation(start) for start in starts if is_old(start.engine.vllm_version)]
    older = known | solve(old, known)
    write({"0.15": older, "0.17": newer}, {kind: fit_graphs(f"{kind}_gib") for kind in ("taken", "estimated")})


def is_old(version: str) -> bool:
    return version.startswith("0.15")


def activation_equation(point: dict[str, Any]) -> Equation:
    return equation(model_of(point), point, point.get("tp", 1), point["gib"] * GIB)


def equation(model: ModelSpec, point: dict[str, Any], parallel: int, measured_bytes: float) -> Equation:
    """A peak at `seqs` and `tokens`, vLLM's defaults where the point does not say; a first stage samples nothing."""
    shape = activation_shape(model, parallel)
    tokens, seqs = point.get("tokens", TOKENS), point.get("seqs", SEQS)
    hidden_bytes = tokens * shape.hidden * shape.dtype_bytes
    return Equation(
        name_of(point),
        tokens * shape.experts * shape.dtype_bytes,
        {
            "fixed_activation_bytes": 1.0,
            "hidden_copies": hidden_bytes,
            "multimodal_hidden_copies": hidden_bytes * shape.multimodal,
        },
        0.0 if "first_stage_of" in point else seqs * shape.logits * FP32_BYTES,
        tokens * shape.layer * shape.dtype_bytes,
        measured_bytes,
        PEAK_TOLERANCE * measured_bytes,
    )


def block_equation(start: LoggedBlocks) -> Equation:
    engine, parallel = start.engine, start.engine.tensor_parallel_size
    weights = sum(part.num_bytes for part in weight_parts(start.model, parallel))
    blocks = (start.num_gpu_blocks + 0.5) * kv_cache_layout(start.model, engine).bytes_per_block  # floored by vLLM
    rest = start.gpu.memory_bytes * engine.gpu_memory_utilization - weights - blocks
    limits = {"model": start.name, "tokens": engine.max_num_batched_tokens, "seqs": engine.max_num_seqs}
    activation = equation(start.model, limits, parallel, rest)
    non_torch = {("non_torch_parallel_bytes" if parallel > 1 else "non_torch_bytes"): 1.0}
    unlinked = {"unlinked_gpu_bytes": 1.0} if start.gpu.num_linked_gpus == 1 else {}
    terms = {**activation.terms, **non_torch, **unlinked}
    return activation._replace(terms=terms, tolerance_bytes=REST_TOLERANCE_BYTES)


def solve(equations: list[Equation], known: Terms) -> dict[str, float]:
    """Weighted least squares for all parameters that are not in `known`."""
    names = list(dict.fromkeys(name for each in equations for name in (*each.terms, "sampler_logits_copies")))
    names = [name for name in names if name not in known]
    copies = known.get("sampler_logits_copies", 4.0)
    solution: dict[str, float] = {}
    for _ in range(ROUNDS):
        rows = [linear(each, names, known, copies) for each in equations]
        matrix, right = np.array([row for row, _ in rows]), np.array([value for _, value in rows])
        solution = dict(zip(names, map(float, np.linalg.lstsq(matrix, right, rcond=None)[0]), strict=True))
        copies = solution.get("sampler_logits_copies", copies)
    return solution


def linear(each: Equation, names: Iterable[str], known: Terms, copies: float) -> tuple[list[float], float]:
    """One row and right-hand side, in units of its tolerance; the lower of sampler and layer drops out."""
    samples = copies * each.bytes_per_logits_copy >= each.layer_bytes
    terms = {**each.terms, "sampler_logits_copies": each.bytes_per_logits_copy * samples}
    given = each.known_bytes + each.layer_bytes * (not samples)
    given += sum(value * terms.get(name, 0.0) for name, value in known.items())
    row = [terms.get(name, 0.0) / each.tolerance_bytes for name in names]
    return row, (each.measured_bytes - given) / each.tolerance_bytes


def non_torch() -> dict[str, float]:
    points = [(point["tp"] > 1, point["gib"] * GIB) for point in POINTS["non_torch"]]
    return {
        "non_torch_bytes": mean(value for parallel, value in points if not parallel),
        "non_torch_parallel_bytes": mean(value for parallel, value in points if parallel),
    }


def fit_graphs(figure: str) -> dict[str, float]:
    """Bytes for each graph, graph and layer, graph and layer with experts."""
    points = [point for point in POINTS["graphs"] if point["fitted"] and figure in point]
    rows, right = [], []
    for point in points:
        layers = model_of(point).layers
        counts = (1, len(layers), sum(1 for layer in layers if layer.experts))
        rows.append([point["graphs"] * count / (point[figure] * GIB) for count in counts])
        right.append(1.0)
    names = ("per_graph_bytes", "per_layer_bytes", "per_expert_layer_bytes")
    return dict(zip(names, map(float, np.linalg.lstsq(np.array(rows), np.array(right), rcond=None)[0]), strict=True))


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
    if name == "unlinked_gpu_bytes":
        return "one block count: Llama-3.1-8B on an RTX 4090, vLLM 0.19.0"
    return sources["0.17" if name in SHARED_WITH_0_17 else version]


def sourced(value: float, source: str) -> dict[str, float | str]:
    return {"value": float(f"{value:.6g}"), "source": source}


if __name__ == "__main__":
    main()
