"""Closed loops whose arguments are unknown, replayed as their file says and with the arguments of published scripts.

    python -m benchmarks.closed_loops ../shared/measured

InferenceX publishes the scripts that it measures with (SemiAnalysisAI/InferenceX, benchmarks/single_node, August 2026); the runs are of
spring 2026 and of older versions of vLLM, so a script may have changed in between: where it has a server not start that was
measured, this says so. Nothing is fitted to these runs.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sim.measure.runs import ClosedLoop, Run, read_runs
from sim.measure.validate import Errors, validate
from sim.report.tables import aligned

METRICS = ("ttft_mean", "tpot_mean")
ROOM = 256  # tokens beyond the longest request: MAX_MODEL_LEN is the caller's, and but for room means nothing
COMMON = {"gpu_memory_utilization": 0.9, "kv_cache_dtype": "fp8"}


class Server(NamedTuple):
    """What was measured: a model's name, its weights and its GPU."""

    model: str
    precision: str | None
    gpu: str


def scripted(run: Run) -> dict[str, Any] | None:
    """The arguments that the script of that model, precision and GPU has; None where there is no script."""
    if not isinstance(run.workload, ClosedLoop):
        return None
    prompt, output = run.workload.prompt_tokens.uniform[1], run.workload.output_tokens.uniform[1]
    bounded = {**COMMON, "max_model_len": prompt + output + ROOM}
    minimax = {**bounded, "max_cudagraph_capture_size": 2048, "max_num_batched_tokens": 2 * prompt}
    concurrency = run.workload.concurrency
    kimi = {**bounded, "max_num_seqs": concurrency, "max_cudagraph_capture_size": 2 * concurrency}
    arguments: Mapping[Server, dict[str, Any]] = {
        Server("MiniMax-M2.5", "fp4", "b200-sxm"): minimax,
        Server("MiniMax-M2.5", "fp8", "b200-sxm"): {**minimax, "block_size": 32},
        Server("MiniMax-M2.5", "fp8", "h100-sxm"): {"gpu_memory_utilization": 0.9},
        Server("Kimi-K2.5", "fp4", "b200-sxm"): kimi,
    }
    return arguments.get(_server(run))


def with_scripts(runs: Sequence[Run]) -> list[Run]:
    """The runs, those that have a script with its arguments."""
    return [run.model_copy(update={"engine": {**run.engine, **(scripted(run) or {})}}) for run in runs]


def rows(folder: Path) -> Iterator[tuple[object, ...]]:
    """By model, weights, GPU and version: runs that start, and their errors, as the file says and with the arguments of scripts."""
    unknown = [run for run in read_runs(folder / "closed_loop.json") if not run.engine_args_known]
    plain, again = _by_group(unknown), _by_group(with_scripts([run for run in unknown if scripted(run)]))
    for group, found in plain.items():
        server, version = group
        yield (*server, version, *_cells(found), *_cells(again.get(group, (None, {}))))


def _by_group(runs: Sequence[Run]) -> dict[tuple[Server, str], tuple[int, dict[str, tuple[float, Errors]]]]:
    """How many were replayed, and for each metric the median of signed errors and their sizes."""
    found: dict[tuple[Server, str], list[dict[str, float]]] = {_group(run): [] for run in sorted(runs, key=_group)}
    for result, whole in validate(runs).replayed:
        found[_group(result.run)].append(whole.errors)
    return {group: (len(errors), _sizes(errors)) for group, errors in found.items()}


def _sizes(errors: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, Errors]]:
    sizes = {}
    for name in METRICS:
        of = np.array([one[name] for one in errors if name in one])
        if len(of):
            sizes[name] = float(np.median(of)), Errors(len(of), float(abs(of).mean()), float(np.median(abs(of))))
    return sizes


def _cells(found: tuple[int | None, Mapping[str, tuple[float, Errors]]]) -> Iterator[object]:
    count, sizes = found
    yield count
    for name in METRICS:
        yield f"{sizes[name][0]:+.0f} / {sizes[name][1].mape:.0f}" if name in sizes else None


def _group(run: Run) -> tuple[Server, str]:
    return _server(run), run.engine_version.removeprefix("vllm ").partition("-")[0]


def _server(run: Run) -> Server:
    return Server(run.model.rpartition("/")[2], run.weights_precision or "bf16", run.gpu)


HEADER = ("model", "weights", "GPU", "vLLM", "runs", "TTFT", "TPOT", "with its script", "TTFT", "TPOT")

if __name__ == "__main__":
    print(aligned(HEADER, rows(Path(sys.argv[1]))))
