"""The JSON of vLLM's own benchmark is a trace of what it sent."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sim.errors import TraceError
from sim.workload.readers import read_trace
from sim.workload.trace import Trace
from tests.shared import SHARED, needs_shared

BENCH: dict[str, Any] = {
    "date": "20261121-092406",
    "model_id": "meta-llama/Llama-3.1-8B",
    "num_prompts": 4,
    "request_rate": 2.0,
    "burstiness": 1.0,
    "max_concurrency": None,
    "duration": 1.5,
    "input_lens": [30, 10, 20, 40],
    "output_lens": [3, 1, 0, 5],
    "ttfts": [0.1, 0.1, 0.0, 0.2],
    "itls": [[0.1, 0.1], [], [], [0.1, 0.1, 0.1, 0.1]],
    "start_times": [102.5, 101.0, 100.0, 102.0],
    "generated_texts": ["a", "b", "", "c"],
}


def write(folder: Path, *, indent: int | None = None, leave_out: str = "", **changes: Any) -> Path:
    path = folder / "bench.json"
    values = {key: value for key, value in (BENCH | changes).items() if key != leave_out}
    path.write_text(json.dumps(values, indent=indent), encoding="utf-8")
    return path


def read(folder: Path, **changes: Any) -> Trace:
    return read_trace(write(folder, **changes))


@pytest.mark.parametrize("indent", [None, 2])
def test_requests_come_when_they_were_sent(tmp_path: Path, indent: int | None) -> None:
    """In order of sending, from 0; the failed one is left out, and said to be; however the JSON is printed."""
    trace = read(tmp_path, indent=indent)
    assert trace.arrival_s.tolist() == [0.0, 1.0, 1.5]
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([10, 40, 30], [1, 5, 3])
    assert (trace.request_id, trace.format) == (("r1", "r3", "r0"), "vllm bench")
    (note,) = trace.notes
    assert "1 of 4 requests failed and are left out" in note
    assert "what prompts share is not recorded" in note


def test_older_versions_leave_times_to_the_rule_of_the_benchmark(tmp_path: Path) -> None:
    """Drawn as `--request-rate 2` draws them: the last of four comes two seconds after the start; the same each time."""
    one, two = (read(tmp_path, leave_out="start_times", output_lens=[1, 1, 1, 1]) for _ in range(2))
    assert one.arrival_s.tolist() == two.arrival_s.tolist()
    assert one.request_id == ("r0", "r1", "r2", "r3")
    assert 0 < one.duration_s < 2
    assert "arrivals are drawn as it did, 2 requests/s" in one.notes[0]
    at_once = read(tmp_path, leave_out="start_times", request_rate="inf")
    assert at_once.arrival_s.tolist() == [0.0, 0.0, 0.0]
    assert "all at once" in at_once.notes[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"max_concurrency": 2},
        {"max_concurrency": 2, "request_rate": "inf"},
        {"ramp_up_strategy": "linear", "ramp_up_start_rps": 1, "ramp_up_end_rps": 9},
    ],
)
def test_times_that_cannot_be_known_are_refused(tmp_path: Path, changes: Mapping[str, Any]) -> None:
    """Where requests waited for each other, or the rate changed; with recorded times both are fine."""
    with pytest.raises(TraceError, match=r"`start_times` is absent.*vLLM 0\.21 or newer"):
        read(tmp_path, leave_out="start_times", **changes)
    assert len(read(tmp_path, **changes)) == 3


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"leave_out": "input_lens"}, "`input_lens` is absent; run vllm bench serve with --save-detailed"),
        ({"output_lens": [0, 0, 0, 0]}, "`output_lens` must have a request with output"),
        ({"output_lens": [1, 1]}, "`output_lens` must be as long as `input_lens`, 4, got 2"),
        ({"input_lens": [1, 0, 1, 1]}, "`input_lens` must be an integer from 1"),
        ({"input_lens": [1, "2", 1, 1]}, "`input_lens` must be an integer from 1 .* got 2"),
        ({"start_times": [1.0, None, 1.0, 1.0]}, "`start_times` must be a finite number"),
        ({"start_times": [1.0, float("nan"), 1.0, 1.0]}, "`start_times` must be a finite number"),
        ({"start_times": [1.0]}, "`start_times` must be as long"),
        ({"request_rate": "fast"}, "`request_rate` must be a number above 0 or inf, got fast"),
        ({"request_rate": 1e-300, "leave_out": "start_times"}, "`request_rate` must be a number above 0 or inf"),
        ({"burstiness": 0, "leave_out": "start_times"}, "`burstiness` must be finite"),
        ({"max_concurrency": 0}, "`max_concurrency` must be an integer from 1 to 2,147,483,647 or null, got 0"),
    ],
)
def test_what_is_wrong_is_named_with_its_key(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(TraceError, match=f"bench.json: {problem}"):
        read(tmp_path, **changes)


def test_several_benchmarks_in_a_file_are_no_trace(tmp_path: Path) -> None:
    """As `--append-result` writes them."""
    path = write(tmp_path)
    path.write_text(f"{path.read_text()}\n{path.read_text()}")
    with pytest.raises(TraceError, match="holds several benchmarks"):
        read_trace(path)


def test_the_first_requests_are_those_sent_first(tmp_path: Path) -> None:
    """A limit counts requests, not the file's lines."""
    assert read_trace(write(tmp_path), limit=2).prompt_tokens.tolist() == [10, 40]


@needs_shared
def test_a_benchmark_of_a_real_server_is_read() -> None:
    """120 requests at 4 a second."""
    trace = read_trace(SHARED / "measured/cpu/bench_A_r4.json")
    assert len(trace) == 120
    assert trace.duration_s == pytest.approx(30, rel=0.05)
