"""Small measured runs, given as the JSON that a user would write."""

import json
from pathlib import Path
from typing import Any

from sim.measure.runs import Run, read_runs

OPEN_LOOP: dict[str, Any] = {
    "kind": "open_loop",
    "arrivals": "poisson",
    "stages": [{"rate_rps": 4.0, "duration_s": 20.0}, {"rate_rps": 8.0, "duration_s": 20.0}],
    "prompts": {"distinct": 6, "groups": 3, "shared_tokens": 40, "unique_tokens": 60, "order": "round_robin"},
    "output_tokens": 20,
}
CLOSED_LOOP: dict[str, Any] = {
    "kind": "closed_loop",
    "concurrency": 4,
    "num_requests": 20,
    "prompt_tokens": {"uniform": [100, 200]},
    "output_tokens": {"uniform": [10, 30]},
}
FIGURES = {"stage": None, "ttft_ms": {"mean": 30.0}, "tpot_ms": {"mean": 8.0}, "e2el_ms": {"mean": 180.0, "p99": 200.0}}


def run_json(**changes: Any) -> dict[str, Any]:
    """A run of Llama-3.1-8B on an H100, unless told otherwise."""
    run = {
        "id": "a",
        "source": "test",
        "engine_version": "vllm 0.15.1",
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "gpu": "h100-sxm",
        "engine": {"tensor_parallel_size": 1, "max_num_seqs": 128, "max_model_len": 4096},
        "workload": OPEN_LOOP,
        "clock": "client",
        "measured": [FIGURES],
    }
    return run | changes


def write_runs(folder: Path, *runs: dict[str, Any], **top: Any) -> Path:
    path = folder / "runs.json"
    path.write_text(json.dumps({"format": 1, "runs": list(runs), **top}), encoding="utf-8")
    return path


def make_run(folder: Path, **changes: Any) -> Run:
    return read_runs(write_runs(folder, run_json(**changes)))[0]
