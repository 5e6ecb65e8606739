"""`servecast optimize` and `servecast capacity`, as they are typed."""

import csv
import json
from pathlib import Path

import pytest

from sim.specs.autotuning import AutotuningParameters
from tests.cli.conftest import Servecast

SPACE = "knobs: {max_num_seqs: [1, 4], max_num_batched_tokens: [128, 256]}"


@pytest.fixture
def question(trace: Path, linear: Path, tmp_path: Path) -> list[str | Path]:
    """A small space over four requests, with given step times."""
    space = tmp_path / "space.yaml"
    space.write_text(SPACE)
    model: list[str | Path] = ["Llama-3.1-8B", "--gpu", "h100-sxm", "--max-model-len", "2048", "--trace", trace]
    return [*model, "--step-time-model", linear, "--space", space, "--workers", "1"]


def test_json_is_one_object_with_the_keys_that_are_promised(question: list[str | Path], servecast: Servecast) -> None:
    """And nothing else on stdout."""
    status, out, _ = servecast("optimize", *question, "--objective", "latency", "--slo", "ttft_p99=1s", "--json")
    assert status == 0
    found = json.loads(out)
    assert {"best", "pareto", "evaluated", "infeasible", "candidates", "confidence"} <= set(found)
    assert found["confidence"]["level"] == "unknown"
    assert {"engine", "metrics", "score", "tied_with", "serve_command"} <= set(found["best"])
    assert found["evaluated"] == len(found["candidates"]) == 4
    assert found["best"]["serve_command"].startswith("vllm serve meta-llama/Llama-3.1-8B --")


def test_both_take_a_request_rate(question: list[str | Path], servecast: Servecast) -> None:
    """`optimize` replays the trace at it, all at once too, when four prompts take two steps; `capacity` says what it takes."""
    for rate, said, duration in (("8", 8.0, 0.61), ("inf", "inf", 0.12)):
        _, out, _ = servecast("optimize", *question, "--objective", "latency", "--request-rate", rate, "--json")
        found = json.loads(out)
        assert found["request_rate"] == said
        assert found["best"]["metrics"]["duration"] == pytest.approx(duration)
    asked = [
        word for word in question if word not in {"--space", "--workers", "1"} and not str(word).endswith("space.yaml")
    ]
    status, out, _ = servecast(
        "capacity", *asked, "--max-num-seqs", "1", "--slo", "ttft_p99=1s", "--request-rate", "30", "--json"
    )
    assert (status, json.loads(out)["sizing"]["request_rate"]) == (0, 30.0)


def test_the_text_ends_with_lines_to_paste(question: list[str | Path], servecast: Servecast) -> None:
    """One to serve and one to verify, after the table and the memory."""
    status, out, err = servecast("optimize", *question)
    assert status == 0
    assert "best for throughput" in out
    assert "confidence: step times as given" in out
    assert "memory per GPU: weights" in out
    assert "\n  vllm serve meta-llama/Llama-3.1-8B" in out
    assert "\n  vllm bench serve --model meta-llama/Llama-3.1-8B" in out
    assert "4 candidates tried" in err


def test_a_folder_keeps_the_answer(question: list[str | Path], tmp_path: Path, servecast: Servecast) -> None:
    """JSON, a CSV a table, a plot a knob; a second answer takes the place of the first, nothing else does."""
    folder = tmp_path / "answer"
    assert servecast("optimize", *question, "--out", folder).status == 0
    plots = {"pareto.png", "sensitivity-max_num_seqs.png", "sensitivity-max_num_batched_tokens.png"}
    tables = {"candidates.csv", "pareto.csv", "sensitivity.csv", "verify.jsonl"}
    assert {path.name for path in folder.iterdir()} == {"answer.json", "report.html", *plots, *tables}
    assert all((folder / name).read_bytes().startswith(b"\x89PNG") for name in plots)
    with (folder / "candidates.csv").open() as file:
        rows = list(csv.DictReader(file))
    answer = json.loads((folder / "answer.json").read_text())
    assert [float(row["score"]) for row in rows] == [candidate["score"] for candidate in answer["candidates"]]
    assert servecast("optimize", *question, "--out", folder).status == 0
    (folder / "notes.txt").write_text("mine")
    refused = servecast("optimize", *question, "--out", folder)
    assert (refused.status, "notes.txt" in refused.err) == (2, True)


def test_an_impossible_limit_is_an_answer(question: list[str | Path], servecast: Servecast) -> None:
    """With a status of its own: the nearest point, and what to relax, in words and as JSON."""
    status, out, err = servecast("optimize", *question, "--slo", "ttft_p99=1ms")
    assert status == 3
    assert "error" not in err
    assert "NO candidate keeps all limits" in out
    assert "ttft_p99 at " in out
    as_json = servecast("optimize", *question, "--slo", "ttft_p99=1ms", "--json")
    assert (as_json.status, json.loads(as_json.out)["feasible"]) == (3, False)


def test_steps_are_timed_as_simulate_times_them(trace: Path, tmp_path: Path, servecast: Servecast) -> None:
    """By the same flags, in both commands that search; step times from a file leave no room for them."""
    (tmp_path / "one.yaml").write_text("max_num_seqs: [64]")
    deployed = ["Llama-3.1-8B", "--gpu", "h100-sxm", "--max-model-len", "2048", "--trace", trace]
    timed = ["--composition", "two_pass", "--sampling", "greedy", "--expert-routing", "uniform", "--json"]
    space = ["--space", tmp_path / "one.yaml", "--workers", "1"]
    simulated = json.loads(servecast("simulate", *deployed, "--max-num-seqs", "64", *timed).out)["mean_tpot_ms"]
    plain = json.loads(servecast("optimize", *deployed, *space, "--json").out)["best"]["metrics"]["mean_tpot_ms"]
    found = json.loads(servecast("optimize", *deployed, *space, *timed).out)["best"]["metrics"]["mean_tpot_ms"]
    assert found == simulated != plain
    most = json.loads(servecast("capacity", *deployed, "--max-num-seqs", "1", "--slo", "ttft_p99=1s", *timed).out)[
        "max_request_rate"
    ]
    assert most > 1
    (tmp_path / "linear.yaml").write_text("{kind: linear, base_s: 0.01, per_token_s: 0.0, per_context_token_s: 0.0}")
    for command in ("optimize", "capacity"):
        refused = servecast(command, *deployed, *timed, "--step-time-model", tmp_path / "linear.yaml")
        assert (refused.status, "--composition changes nothing" in refused.err) == (2, True)


def test_more_gpus_than_can_be_laid_out_are_refused(trace: Path, servecast: Servecast) -> None:
    """With the number that can be, and none at all."""
    asked = ["optimize", "Llama-3.1-8B", "--gpu", "h100-sxm", "--trace", trace, "--gpus"]
    refused = servecast(*asked, "100000")
    assert (refused.status, "--gpus must be at most 4,096 (128 replicas" in refused.err) == (2, True)
    assert "--gpus must be at least 1" in servecast(*asked, "0").err


def test_the_analytic_scorer_is_checked_by_a_replay(question: list[str | Path], servecast: Servecast) -> None:
    """Its winner has simulated figures, the others those of the formulas."""
    status, out, _ = servecast("optimize", *question, "--scorer", "analytic", "--json")
    assert status == 0
    found = json.loads(out)
    assert found["best"]["metrics"]["completed"] == 4
    assert sum("analytic_score" in candidate["metrics"] for candidate in found["candidates"]) == 3


def test_capacity_tells_rate_curve_and_gpus(trace: Path, linear: Path, tmp_path: Path, servecast: Servecast) -> None:
    """In words, in JSON and in a folder."""
    model = ["Llama-3.1-8B", "--gpu", "h100-sxm", "--max-model-len", "2048", "--max-num-seqs", "1"]
    call = ["capacity", *model, "--trace", trace, "--step-time-model", linear, "--slo", "ttft_p99=1s"]
    folder = tmp_path / "answer"
    status, out, _ = servecast(*call, "--rate", "20", "--out", folder)
    assert status == 0
    assert "1 x h100-sxm takes" in out
    assert "20 requests/s take 2 replicas on 2 GPUs" in out
    assert "confidence: step times as given\n90 % intervals: " in out
    assert {path.name for path in folder.iterdir()} == {
        "answer.json",
        "curve.csv",
        "curve.png",
        "report.html",
        "verify.jsonl",
    }
    found = json.loads(servecast(*call, "--json").out)
    assert found["sizing"] is None
    assert found["max_request_rate"] == json.loads((folder / "answer.json").read_text())["max_request_rate"]


def test_the_line_to_verify_replays_to_the_printed_figures(
    trace: Path, linear: Path, tmp_path: Path, servecast: Servecast
) -> None:
    """The file that --out writes stands where the line reads it, and `simulate` finds in it what is printed."""
    deployment = ["Llama-3.1-8B", "--gpu", "h100-sxm", "--max-num-seqs", "1", "--step-time-model", linear]
    answer = tmp_path / "answer"
    out = servecast("capacity", *deployment, "--trace", trace, "--slo", "ttft_p99=1s", "--out", answer).out
    line = next(line for line in out.splitlines() if "vllm bench serve" in line)
    dataset = line.split()[line.split().index("--dataset-path") + 1]
    assert Path(dataset) == answer / "verify.jsonl"
    found = json.loads(servecast("simulate", *deployment, "--trace", dataset, "--json").out)
    assert f"ttft_p99 {found['p99_ttft_ms']:.4g} ms" in out
    assert f"{found['output_throughput']:.4g} output tok/s" in out


def test_what_changes_answers_is_searched_where_it_is_asked_for(
    trace: Path, linear: Path, servecast: Servecast
) -> None:
    """Beside the derived knobs, with a word on quality; what cannot be is a candidate with its reason."""
    deployed = ["Llama-3.1-8B", "--gpu", "h100-sxm", "--max-model-len", "2048", "--trace", trace, "--trials", "9"]
    knobs = ["--knob", "quantization=fp8,int4,awq", "--knob", "kv_cache_dtype=fp8"]
    _, out, _ = servecast("optimize", *deployed, "--workers", "1", "--no-intervals", "--json", *knobs)
    found = json.loads(out)
    tried = {row["engine"]["quantization"]: row["reason"] for row in found["candidates"]}
    assert tried.keys() == {"fp8", "int4", "awq"}
    assert "needs a checkpoint quantised that way" in tried["awq"]
    (chosen,) = {found["best"]["engine"]["quantization"]} - {"awq"}
    assert f"--kv-cache-dtype fp8 --quantization {chosen}" in found["best"]["serve_command"]
    said = found["recommendations"][0]
    assert said.startswith(f"quantization={chosen} and kv_cache_dtype=fp8 change what the model answers")
    assert (chosen == "int4") == ("vLLM quantises to int4 ahead of time only" in " ".join(found["recommendations"]))
    for wrong, said in {"fp8": "--knob is a knob and its values", "max_num_seqs=[": "--knob max_num_seqs"}.items():
        status, _, err = servecast("optimize", *deployed, "--knob", wrong)
        assert (status, said in err) == (2, True), err
    refused = servecast("optimize", *deployed, "--space", linear, "--knob", "max_num_seqs=1,2")
    assert "put the knob into the space that is given" in refused.err


FLEET = "pools: [{name: prompts, role: prefill}, {name: answers, role: decode, engine: {max_num_seqs: 4}}]\n"
PARTS = "knobs: {answers.replicas: [1, 2], answers.max_num_seqs: [1, 8], decider: [always]}"


@pytest.fixture
def fleet_question(question: list[str | Path], tmp_path: Path) -> list[str | Path]:
    """The same over two pools that hand over."""
    (tmp_path / "space.yaml").write_text(PARTS)
    (tmp_path / "fleet.yaml").write_text(FLEET)
    return [*question, "--no-intervals", "--fleet", tmp_path / "fleet.yaml"]


def test_the_fleet_in_the_folder_is_simulated_as_it_was_found(
    fleet_question: list[str | Path], trace: Path, linear: Path, tmp_path: Path, servecast: Servecast
) -> None:
    """best_fleet.yaml in place of what was asked, and nothing else changed, gives the figures of the answer."""
    folder = tmp_path / "answer"
    status, out, _ = servecast("optimize", *fleet_question, "--objective", "latency", "--out", folder)
    assert status == 0
    best = json.loads((folder / "answer.json").read_text())["best"]
    assert {"best_fleet.yaml", "sensitivity-answers.max_num_seqs.png"} < {path.name for path in folder.iterdir()}
    assert f"best_fleet.yaml:\n{(folder / 'best_fleet.yaml').read_text()}" in out
    deployed = ["Llama-3.1-8B", "--gpu", "h100-sxm", "--max-model-len", "2048", "--step-time-model", linear]
    line = ["simulate", *deployed, "--trace", trace, "--fleet", folder / "best_fleet.yaml", "--json"]
    found = json.loads(servecast(*line).out)
    assert found["p99_e2el_ms"] == best["score"] == best["metrics"]["p99_e2el_ms"]
    assert [pool["arrived"] for pool in found["pools"]] == [pool["arrived"] for pool in best["metrics"]["pools"]]
    with (folder / "candidates.csv").open() as file:
        assert {row["answers.max_num_seqs"] for row in csv.DictReader(file)} == {"1", "8"}
    assert servecast("optimize", *fleet_question, "--out", folder).status == 0


def test_a_fleet_that_cannot_be_searched_is_a_sentence(
    fleet_question: list[str | Path], tmp_path: Path, servecast: Servecast
) -> None:
    """It names the file and what is wrong, whether in the fleet, in the space or beside them."""
    sayings = {
        ("fleet.yaml", "pools: [{role: decode}]"): "fleet.yaml: pools of role prefill",
        ("fleet.yaml", "pools: [{engine: {max_seqs: 1}}]"): "fleet.yaml: pool 0: `engine.max_seqs` is no engine",
        ("space.yaml", "{answer.replicas: [1]}"): "space.yaml: answer.replicas is no knob: the fleet has no pool",
    }
    for (name, text), saying in sayings.items():
        kept = (tmp_path / name).read_text()
        (tmp_path / name).write_text(text)
        status, _, err = servecast("optimize", *fleet_question)
        assert (status, saying in err, err.count("\n")) == (2, True, 1), err
        (tmp_path / name).write_text(kept)
    assert "put `gpus` into the space file" in servecast("optimize", *fleet_question, "--gpus", "3").err


def test_a_name_of_a_pool_is_no_path(fleet_question: list[str | Path], tmp_path: Path, servecast: Servecast) -> None:
    """Its plots stand in the folder, whatever it is called."""
    (tmp_path / "fleet.yaml").write_text("pools: [{name: ../web}]")
    (tmp_path / "space.yaml").write_text("knobs: {../web.replicas: [1, 2]}")
    assert servecast("optimize", *fleet_question, "--out", tmp_path / "answer").status == 0
    assert (tmp_path / "answer" / "sensitivity-..%2Fweb.replicas.png").is_file()


def test_parameters_come_from_a_file(tmp_path: Path, trace: Path, linear: Path, servecast: Servecast) -> None:
    """Bounds of the derived space among them; a slip names the file."""
    path = tmp_path / "parameters.yaml"
    path.write_text("min_gpu_memory_utilization: 0.7\nlow_kv_cache_ratio: 0.2\n")
    assert AutotuningParameters.read(path) == AutotuningParameters(
        min_gpu_memory_utilization=0.7, low_kv_cache_ratio=0.2
    )
    line = ("optimize", "Llama-3.1-8B", "--gpu", "h100-sxm", "--max-model-len", "2048", "--trace", trace)
    more = (
        "--step-time-model",
        linear,
        "--workers",
        "1",
        "--trials",
        "3",
        "--no-intervals",
        "--json",
        "--parameters",
        path,
    )
    status, out, _ = servecast(*line, *more)
    assert (status, '"gpu_memory_utilization": 0.7' in out) == (0, True)
    for text, said in (
        ("min_gpu_utilization: 1", "parameters.yaml: 'min_gpu_utilization' is no parameter"),
        ("low_kv_cache_ratio: -1", "parameters.yaml: low_kv_cache_ratio must be a number of at least 0"),
        ("[1]", "parameters are a mapping of names to numbers, got list"),
    ):
        path.write_text(text)
        status, _, err = servecast(*line, *more)
        assert (status, said in err) == (2, True), err
