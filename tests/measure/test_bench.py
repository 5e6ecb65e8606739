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
NOBODY = Server(None, None, {})
BENCH: dict[str, Any] = {
    "model_id": "served-as",
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
    """Its requests in order of sending, but for failed ones; its concurrency; its own statistics under our names, and from
    the details those that it was not asked for: TTFT 100 ms, and 100 or 300 ms to the end.
    """
    (run,) = read_measured([write(tmp_path)], SERVER)
    assert isinstance(run.workload, Requests)
    assert (run.workload.prompt_tokens, run.workload.output_tokens, run.workload.concurrency) == ((10, 30), (1, 3), 2)
    figures = run.measured[0].figures
    own = {"ttft_mean": 100.0, "ttft_p50": 90.0, "ttft_p99": 120.0, "tpot_mean": 10.0}
    assert figures.items() >= (own | {"output_throughput": 12.0, "makespan_s": 1.5}).items()
    assert [figures[name] for name in ("e2el_mean", "e2el_p50", "tpot_p50")] == pytest.approx([200, 200, 100])
    assert "2 clients send a request each when their last has ended" in run.note
    assert "1 of 3 requests failed" in run.note


def test_a_rate_with_a_concurrency_keeps_the_times_recorded(tmp_path: Path) -> None:
    """Clients that also wait for the next arrival are no closed loop."""
    (run,) = read_measured([write(tmp_path, request_rate=2.0)], SERVER)
    assert isinstance(run.workload, Requests)
    assert (run.workload.concurrency, run.workload.start_s) == (None, (0.0, 2.0))


def test_the_model_may_be_the_one_that_was_benchmarked(tmp_path: Path) -> None:
    """Where its `model_id` is a model; a name that was given wins. Without flags, defaults are taken and said."""
    path = write(tmp_path, model_id="Qwen/Qwen3-8B")
    (run,) = read_measured([path], Server(None, "h100-sxm", {}))
    assert run.model == "Qwen/Qwen3-8B"
    assert "taken to run with vLLM's defaults" in run.note
    (run,) = read_measured([path], SERVER)
    assert run.model == SERVER.model
    assert "defaults" not in run.note


def test_several_benchmarks_and_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """As --append-result writes them, one a line; a fit would otherwise take one run for the other."""
    path = write(tmp_path)
    path.write_text(f"{path.read_text()}\n{path.read_text()}")
    (tmp_path / "other").mkdir()
    ids = [run.id for run in read_measured([path, write(tmp_path / "other")], SERVER)]
    assert ids == ["bench", "bench-2", "bench-3"]


def test_both_formats_together(tmp_path: Path) -> None:
    """Files of either kind in one call, in the order given."""
    ids = [run.id for run in read_measured([write(tmp_path), write_runs(tmp_path, run_json())], SERVER)]
    assert ids == ["bench", "a"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"itls": None}, "`itls` must have an entry a request; run vllm bench serve with --save-detailed"),
        ({"ttfts": [0.1]}, "`ttfts` must have an entry a request"),
        ({"ttfts": [0.1, "soon", 0.1]}, "`ttfts` and `itls` must hold seconds"),
        ({"ttfts": [[0.1], [0.1], [0.1]]}, "`ttfts` and `itls` must hold seconds"),
        ({"ttfts": [0.1, float("nan"), 0.1]}, "`ttfts` and `itls` must hold seconds"),
        ({"max_concurrency": 10**12}, "`max_concurrency` must be an integer from 1 to 2,147,483,647 or null"),
        ({"itls": [[], [None], []]}, "`ttfts` and `itls` must hold seconds"),
        ({"input_lens": None}, "`input_lens` is absent; run vllm bench serve with --save-detailed"),
        ({"output_lens": [0, 0, 0]}, "`output_lens` must have a request with output, got none."),
        ({"duration": 10**400}, "must have integers of at most 64 bits"),
        ({"duration": 1e300}, "`duration` must be a number above 0"),
        ({"duration": -1}, "`duration` must be a number above 0"),
        ({"output_throughput": "high"}, "`output_throughput` must be a number above 0 .* got high"),
    ],
)
def test_what_is_missing_or_wrong_is_named(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    """Without --save-detailed there is nothing to replay."""
    with pytest.raises(RunsError, match=f"bench.json: {problem}"):
        read_measured([write(tmp_path, **changes)], SERVER)


@pytest.mark.parametrize(
    ("server", "lacking"),
    [
        (NOBODY, r"model \('served-as' is not known here\) and GPU; give --gpu and .*, or --gpu, --model"),
        (Server(None, "h100-sxm", {}), "name its server's model"),
        (Server("Llama-3.1-8B", None, {}), "name its GPU; give --gpu"),
    ],
)
def test_flags_that_are_needed_are_named(tmp_path: Path, server: Server, lacking: str) -> None:
    """A benchmark's JSON says nothing of its server."""
    with pytest.raises(RunsError, match=lacking):
        read_measured([write(tmp_path)], server)


def test_no_json_at_all(tmp_path: Path) -> None:
    """One sentence for an absent file, one for garbage."""
    with pytest.raises(RunsError, match="cannot be read"):
        read_measured([tmp_path / "absent.json"], NOBODY)
    for text in ("", "{}\n{}"):
        (tmp_path / "neither.json").write_text(text)
        with pytest.raises(RunsError):
            read_measured([tmp_path / "neither.json"], NOBODY)
    garbage = tmp_path / "garbage.json"
    garbage.write_text("not json", encoding="utf-8")
    with pytest.raises(RunsError, match="is not valid JSON"):
        read_measured([garbage], NOBODY)
