"""`servecast validate` and `servecast calibrate` from the command line."""

import json
import re
from pathlib import Path

import pytest

from sim.cli import run
from tests.measure.makers import CLOSED_LOOP, make_run, run_json, write_runs
from tests.measure.test_calibrate_kernels import write_profile


def test_validate_prints_tables_and_reasons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors by metric, by group, beside other simulators and by run; and why a run was left out."""
    monkeypatch.setenv("COLUMNS", "120")
    path = write_runs(tmp_path, run_json(), run_json(id="b", gpu="h1000"))
    assert run(["validate", str(path)]) == 0
    out = capsys.readouterr().out
    for part in ("tpot_mean", "median APE % by", "BLIS roofline", "Llama-3.1-8B-Instruct", "1 not replayed (b): GPU"):
        assert part in out


def test_validate_prints_json_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs with their errors and a summary by metric."""
    assert run(["validate", str(write_runs(tmp_path, run_json())), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["summary"]["tpot_mean"]) == {"n", "mape", "median_ape"}
    assert found["runs"][0]["id"] == "a"


def test_validate_draws_one_plot(tmp_path: Path) -> None:
    """A PNG of measured against predicted, and a page; an impossible place is an error."""
    path = write_runs(tmp_path, run_json())
    files = ["--plot", str(tmp_path / "scatter.png"), "--report", str(tmp_path / "page.html")]
    assert run(["validate", str(path), *files]) == 0
    assert "Measured against predicted" in (tmp_path / "page.html").read_text()
    assert (tmp_path / "scatter.png").read_bytes().startswith(b"\x89PNG")
    assert run(["validate", str(path), "--plot", str(tmp_path / "absent/scatter.png")]) == 2


def test_only_known_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With none left, that is an error of one sentence."""
    path = write_runs(tmp_path, run_json(engine_args_known=False))
    assert run(["validate", str(path), "--only-known-args"]) == 2
    assert "no run is left" in capsys.readouterr().err


def test_calibrate_writes_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before and after, the factors, the verdict; and a profile that validate takes."""
    runs = write_runs(tmp_path, *(run_json(id=f"c{n}", workload=CLOSED_LOOP | {"concurrency": n}) for n in (2, 8)))
    profile = tmp_path / "mine.yaml"
    page = tmp_path / "page.html"
    assert run(["calibrate", str(runs), "--gpu", "h100-sxm", "--out", str(profile), "--report", str(page)]) == 0
    assert "memory_efficiency" in page.read_text()
    said = capsys.readouterr()
    assert "after, held out" in said.out
    assert "memory_efficiency" in said.out
    assert f"The profile is in {profile}." in said.err
    assert run(["validate", str(runs), "--gpu", str(profile)]) == 0


def test_calibrate_to_a_layer_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Operators before and after, the card, runs that nothing was fitted to; a profile that validate takes. It needs the one or the other."""
    folder, out = write_profile(tmp_path / "kernels", 1), tmp_path / "mine.yaml"
    runs = write_runs(tmp_path, run_json(gpu="rtx-4090", workload=CLOSED_LOOP, engine={"max_model_len": 4096}))
    command = ["calibrate", str(runs), "--kernels", str(folder), "--gpu", "rtx-4090", "--out", str(out)]
    assert run(command) == 0
    said = capsys.readouterr()
    assert re.search(r"^a +tpot_mean +[\d.]+ +[\d.]+ +[\d.]+$", said.out, re.MULTILINE)
    assert re.search(r"^mixed attention +36( +[\d.]+){4} +-$", said.out, re.MULTILINE)
    assert re.search(r"^memory bandwidth +x 0\.\d+$", said.out, re.MULTILINE)
    assert f"The profile is in {out}." in said.err
    assert run(["validate", str(runs), "--gpu", str(out)]) == 0
    capsys.readouterr()
    assert run([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["errors"].keys() == {"before", "held_out", "ranks_left_out"}
    assert found["compared"]["a"]["tpot_mean"].keys() == {"measured", "before", "fitted"}
    assert run(["calibrate", "--gpu", "rtx-4090", "--out", str(out)]) == 2
    assert "give measured runs, a layer profile (--kernels FOLDER), or both" in capsys.readouterr().err


def test_calibrate_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Base, runs, factors, errors and verdict."""
    make_run(tmp_path)
    runs, profile = write_runs(tmp_path, run_json(workload=CLOSED_LOOP)), tmp_path / "mine.yaml"
    assert run(["calibrate", str(runs), "--gpu", "h100-sxm", "--out", str(profile), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"base", "runs", "scales", "errors", "verdict", "compared"}
    assert found["compared"]["a"]["tpot_mean"].keys() == {"measured", "before", "fitted"}


BENCH = {
    "model_id": "tiny",
    "num_prompts": 2,
    "request_rate": "inf",
    "duration": 0.4,
    "output_throughput": 12.5,
    "input_lens": [100, 200],
    "output_lens": [2, 3],
    "start_times": [7.0, 7.0],
    "ttfts": [0.1, 0.1],
    "itls": [[0.1], [0.1, 0.1]],
    "mean_ttft_ms": 100.0,
}


def test_a_benchmark_with_its_servers_line_is_measured_beside_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both validate and calibrate take the pasted line, and say what the benchmark left open; without, what they need."""
    bench, profile = tmp_path / "bench.json", tmp_path / "mine.yaml"
    bench.write_text(json.dumps(BENCH))
    line = ["--", "vllm", "serve", "meta-llama/Llama-3.1-8B", "--max-num-seqs", "8", "--max-model-len", "4096"]
    assert run(["validate", str(bench), "--gpu", "h100-sxm", *line]) == 0
    said = capsys.readouterr()
    assert re.search(r"^bench +ttft_mean +100\.00 +[\d.]+ +[\d.]+ to [\d.]+ +[-+][\d.]+$", said.out, re.MULTILINE)
    assert re.search(r"^bench +e2el_p99 +299\.00 ", said.out, re.MULTILINE)
    assert "what prompts share is not recorded" in said.err
    assert run(["calibrate", str(bench), "--gpu", "h100-sxm", "--out", str(profile), *line]) == 0
    assert re.search(r"^bench +tpot_mean +100\.00 +[\d.]+ +[\d.]+$", capsys.readouterr().out, re.MULTILINE)
    assert run(["validate", str(bench)]) == 2
    assert "give --gpu and the server's line behind `--`" in capsys.readouterr().err
