"""Closed loops whose arguments are unknown, replayed as their file says and with the arguments of published scripts.

    python -m benchmarks.closed_loops ../shared/measured

InferenceX publishes the scripts that it measures with (SemiAnalysisAI/InferenceX, benchmarks/single_node) and when they changed (perf-changelog.yaml):
each run has those of its version of vLLM, as far as its history tells. Nothing is fitted to these runs.
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


class Server(NamedTuple):
    """What was measured: a model's name, its weights and its GPU."""

    model: str
    precision: str | None
    gpu: str


ALL = Server("all", None, ""), ""


def scripted(run: Run) -> dict[str, Any] | None:
    """The arguments that the script of that model, precision and GPU has; None where there is no script.

    Kimi's and MiniMax's in fp8 have no data parallelism, and before August Kimi's has no expert parallelism, whatever a run is labelled.
    MiniMax's in fp8 has Triton's experts with 0.17, of which B200 has no tables; gpt-oss's sets VLLM_MXFP4_USE_MARLIN=1 on Hopper.
    """
    if run.engine_args_known or not isinstance(run.workload, ClosedLoop):
        return None
    prompt, concurrency = run.workload.prompt_tokens.uniform[1], run.workload.concurrency
    bounded = {"gpu_memory_utilization": 0.9, "max_model_len": prompt + run.workload.output_tokens.uniform[1] + ROOM}
    wide = {
        **bounded,
        "kv_cache_dtype": "fp8",
        "max_cudagraph_capture_size": 2048,
        "max_num_batched_tokens": 2 * prompt,
    }
    in_one = {"tensor_parallel_size": _num_gpus(run), "data_parallel_size": 1}
    first = {**bounded, "gpu_memory_utilization": 0.95, "block_size": 32, "enable_expert_parallel": True}
    minimax_fp4 = {**bounded, "max_num_seqs": concurrency} if "nightly" in run.engine_version else wide
    minimax_fp8 = first if run.vllm_version == "0.17.0" else {**wide, **in_one, "block_size": 32}
    kimi_fp4 = {**wide, **in_one, "max_num_seqs": concurrency, "enable_expert_parallel": False}
    kimi_int4 = {**bounded, "gpu_memory_utilization": 0.95, "max_num_seqs": concurrency}
    gpt_oss = {**bounded, "max_cudagraph_capture_size": 2048, "max_num_batched_tokens": 8192}
    marlin = {**gpt_oss, "max_num_seqs": concurrency, "moe_backend": "marlin"}
    decoding = {"cudagraph_mode": "FULL_DECODE_ONLY", "max_num_batched_tokens": 8192, "max_num_seqs": 512}
    arguments: Mapping[Server, dict[str, Any]] = {
        **{Server("MiniMax-M2.5", "fp4", gpu): minimax_fp4 for gpu in ("b200-sxm", "b300-sxm")},
        **{Server("MiniMax-M2.5", "fp8", gpu): minimax_fp8 for gpu in ("b200-sxm", "b300-sxm")},
        Server("MiniMax-M2.5", "fp8", "h100-sxm"): {"gpu_memory_utilization": 0.9},
        **{Server("Kimi-K2.5", "fp4", gpu): kimi_fp4 for gpu in ("b200-sxm", "b300-sxm")},
        Server("Kimi-K2.5", "int4", "b200-sxm"): {"gpu_memory_utilization": 0.97},
        Server("Kimi-K2.5", "int4", "h200-sxm"): kimi_int4,
        Server("gpt-oss-120b", "fp4", "b200-sxm"): {**gpt_oss, "kv_cache_dtype": "fp8", "max_num_seqs": 512},
        **{Server("gpt-oss-120b", "fp4", gpu): marlin for gpu in ("h100-sxm", "h200-sxm")},
        Server("Llama-3.1-70B", "fp4", "b200-sxm"): {**bounded, "kv_cache_dtype": "fp8", **decoding},
    }
    return arguments.get(_server(run))


def _num_gpus(run: Run) -> int:
    ranks: int = run.engine["tensor_parallel_size"] * run.engine.get("data_parallel_size", 1)
    return ranks


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
    """How many were replayed, and for each metric the median of signed errors and their sizes; of all of them last."""
    found: dict[tuple[Server, str], list[dict[str, float]]] = {_group(run): [] for run in sorted(runs, key=_group)}
    found[ALL] = []
    for result, whole in validate(runs).replayed:
        found[_group(result.run)].append(whole.errors)
        found[ALL].append(whole.errors)
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
