"""JSON of vLLM's own benchmark as measured runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from sim.errors import RunsError
from sim.measure.bench import Server, read_measured
from sim.measure.runs import Requests
from tests.measure.makers import run_json, write_runs

SERVER = Server("meta-llama/Llama-3.1-8B", "h100-sxm", {"max_num_seqs": 8}, "0.15.1")
BENCH: dict[str, Any] = {
    "num_prompts": 3,
    "request_rate": "inf",
    "max_concurrency": 2,
    "duration": 1.5,
    "output_throughput": 12.0,
    "start_times": [3.0, 1.0, 2.0],
    "input_lens": [30, 10, 20],
    "output_lens": [3, 1, 0],
    "ttfts": [0.1, 0.1, 0.0],
    "itls": [[0.1, 0.1], [], []],
    "mean_ttft_ms": 100.0,
    "median_ttft_ms": 90.0,
    "p99_ttft_ms": 120.0,
    "mean_tpot_ms": 10.0,
}


def write(folder: Path, **changes: Any) -> Path:
    path = folder / "bench.json"
    path.write_text(json.dumps(BENCH | changes), encoding="utf-8")
    return path


def test_a_benchmark_becomes_a_run(tmp_path: Path) -> None:
    """Its requests, but for failed ones; its concurrency; its statistics under our names."""
    (run,) = read_measured([write(tmp_path)], SERVER)
    assert isinstance(run.workload, Requests)
    assert (run.workload.prompt_tokens, run.workload.output_tokens, run.workload.concurrency) == ((30, 10), (3, 1), 2)
    assert run.measured[0].figures == {
        "ttft_mean": 100.0,
        "ttft_p50": 90.0,
        "ttft_p99": 120.0,
        "tpot_mean": 10.0,
        "output_throughput": 12.0,
        "makespan_s": 1.5,
    }


def test_both_formats_together(tmp_path: Path) -> None:
    """Files of either kind in one call, in the order given."""
    ids = [run.id for run in read_measured([write(tmp_path), write_runs(tmp_path, run_json())], SERVER)]
    assert ids == ["bench", "a"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [({"itls": None}, None), ({"output_lens": [0, 0, 0]}, "`output_lens` must have a request with output, got none.")],
)
def test_what_is_missing_is_named(tmp_path: Path, changes: dict[str, Any], problem: str | None) -> None:
    """Without --save-detailed there is nothing to replay."""
    path = write(tmp_path, **changes)
    if problem is None:
        values = json.loads(path.read_text(encoding="utf-8"))
        del values["itls"]
        path.write_text(json.dumps(values), encoding="utf-8")
        problem = "`itls` is absent; run vllm bench serve with --save-detailed."
    with pytest.raises(RunsError) as caught:
        read_measured([path], SERVER)
    assert str(caught.value) == f"{path}: {problem}"


def test_a_benchmark_names_no_server(tmp_path: Path) -> None:
    """Model and GPU must come from elsewhere."""
    with pytest.raises(RunsError, match="give --model and --gpu"):
        read_measured([write(tmp_path)])


def test_no_json_at_all(tmp_path: Path) -> None:
    """One sentence for an absent file, one for garbage."""
    with pytest.raises(RunsError, match="cannot be read"):
        read_measured([tmp_path / "absent.json"])
    garbage = tmp_path / "garbage.json"
    garbage.write_text("not json", encoding="utf-8")
    with pytest.raises(RunsError, match="is not valid JSON"):
        read_measured([garbage])
