"""Runs have what their publishers say elsewhere of servers that the file leaves open."""

from pathlib import Path
from typing import Any

import pytest

from sim.api import read_measured
from sim.cli import run
from sim.measure.published import completed
from sim.measure.runs import Run
from tests.measure.makers import CLOSED_LOOP, make_run, run_json, write_runs

LLAMA: dict[str, Any] = {
    "source": "InferenceX benchmark, as sampled elsewhere",
    "engine_version": "vllm unknown",
    "model": "meta-llama/Llama-3.1-70B",
    "weights_precision": "fp8",
    "workload": CLOSED_LOOP,
}


def completed_run(folder: Path, **changes: Any) -> Run:
    (found,) = completed([make_run(folder, **LLAMA | changes)])
    return found


@pytest.mark.parametrize(
    ("gpu", "more"), [("h200-sxm", {}), ("b200-sxm", {"cudagraph_mode": "FULL_DECODE_ONLY", "max_num_seqs": 512})]
)
def test_a_version_and_graphs_that_only_the_publisher_tells(tmp_path: Path, gpu: str, more: dict[str, Any]) -> None:
    """70b_fp8_*.sh under the image of 70b-tmpl.yml; what the file knows stays, but where the script says otherwise."""
    given = make_run(tmp_path, **LLAMA | {"gpu": gpu})
    found = completed_run(tmp_path, gpu=gpu)
    assert found.vllm_version == "0.10.2"
    assert found.engine == {**given.engine, **more}


def test_arguments_that_are_not_known_are_those_of_the_script(tmp_path: Path) -> None:
    """Kimi's in int4 on H200: as many sequences as clients, and a length that holds a request."""
    changes = {
        "model": "moonshotai/Kimi-K2.5",
        "weights_precision": "int4",
        "gpu": "h200-sxm",
        "engine_version": "vllm 0.16.0",
    }
    found = completed_run(tmp_path, **changes, engine={"tensor_parallel_size": 8}, engine_args_known=False)
    assert found.vllm_version == "0.16.0"
    assert found.engine == {
        "tensor_parallel_size": 8,
        "gpu_memory_utilization": 0.95,
        "max_model_len": 200 + 30 + 256,
        "max_num_seqs": 4,
    }


@pytest.mark.parametrize(
    ("gpu", "version", "is_labelled", "graphs"),
    [
        ("b200-sxm", "0.17.0", True, None),
        ("b200-sxm", "0.17.0", False, 2048),
        ("b300-sxm", "0.17.0", False, None),
        ("b300-sxm", "0.19.0", True, 2048),
    ],
)
def test_a_run_has_the_script_of_its_day(
    tmp_path: Path, gpu: str, version: str, *, is_labelled: bool, graphs: int | None
) -> None:
    """Kimi's in fp4 has graphs of prompts since April; whatever a run is labelled, its experts are cut."""
    changes = {"model": "moonshotai/Kimi-K2.5", "weights_precision": "fp4", "gpu": gpu}
    engine = {"tensor_parallel_size": 4} | ({"enable_expert_parallel": True} if is_labelled else {})
    found = completed_run(tmp_path, **changes, engine_version=f"vllm {version}", engine=engine, engine_args_known=False)
    assert found.engine.get("max_cudagraph_capture_size") == graphs
    assert found.engine["kv_cache_dtype"] == "fp8"
    assert not found.engine["enable_expert_parallel"]


def test_what_another_publisher_measured_stays_as_it_is(tmp_path: Path) -> None:
    given = make_run(tmp_path, **LLAMA | {"source": "somebody"})
    assert completed([given]) == (given,)
    with_version = make_run(tmp_path, **LLAMA | {"engine_version": "vllm 0.15.1"})
    assert completed([with_version]) == (with_version,)


def test_python_reads_runs_completed_or_as_given(tmp_path: Path) -> None:
    path = write_runs(tmp_path, run_json(**LLAMA))
    assert [one.vllm_version for one in read_measured(path)] == ["0.10.2"]
    assert [one.vllm_version for one in read_measured(path, as_given=True)] == [None]


def test_the_command_says_what_it_filled_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And leaves it out where asked to."""
    workload = CLOSED_LOOP | {"num_requests": 4}
    path = write_runs(tmp_path, run_json(**LLAMA | {"workload": workload, "engine": {"tensor_parallel_size": 4}}))
    sentence = "1 run has what its source says elsewhere of its server"
    for more, is_told in (([], True), (["--as-given"], False)):
        assert run(["validate", str(path), "--no-intervals", *more]) == 0
        assert (sentence in capsys.readouterr().err) == is_told
