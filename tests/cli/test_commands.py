import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import typer

import sim
from sim.cli.app import COMMANDS
from tests.cli.conftest import Servecast

LLAMA = ("Llama-3.1-8B", "--gpu", "h100-sxm")
SIMULATE_KEYS = re.findall(
    r"\w+",
    """completed duration p1_arrival_s p5_arrival_s total_input_tokens total_output_tokens request_throughput output_throughput
    total_token_throughput arrived rejected failed unfinished num_preemptions num_gpu_blocks max_kv_cache_usage
    prefix_cache_hit_rate cudagraph_step_fraction gpu_busy_fraction num_steps wall_time_s vllm_version servecast_version
    confidence engine trace_sha256 request_rate rate_scale limit""",
)
FIGURES = ("mean", "median", "std", "p90", "p95", "p99")
LATENCY_KEYS = [f"{figure}_{name}_ms" for name in ("ttft", "tpot", "itl", "e2el") for figure in FIGURES]
MEMORY_KEYS = re.findall(
    r"\w+",
    """num_parameters weights_bytes activation_bytes cuda_graph_bytes non_torch_bytes kv_cache_bytes num_gpu_blocks
    kv_cache_tokens max_concurrency feasible reason""",
)


def test_simulate_prints_the_table_to_stdout_and_talk_to_stderr(trace: Path, servecast: Servecast) -> None:
    """What a pipe gets is the result alone."""
    status, out, err = servecast("simulate", *LLAMA, "--trace", trace)
    assert status == 0
    assert out.startswith("meta-llama/Llama-3.1-8B on 1 x h100-sxm, vLLM ")
    assert re.search(r"^Successful requests: +4$", out, re.MULTILINE)
    assert err.splitlines()[-1].startswith("servecast: 4 requests in ")


def test_simulate_json_is_one_object_with_the_keys_of_vllm_bench(trace: Path, servecast: Servecast) -> None:
    """And those that only a look inside the engine can give; 4 requests of 8 to 11 tokens are 38 tokens."""
    status, out, _ = servecast("simulate", *LLAMA, "--trace", trace, "--json")
    summary = json.loads(out)
    assert status == 0
    assert not {*LATENCY_KEYS, *SIMULATE_KEYS} - set(summary)
    assert (summary["arrived"], summary["completed"], summary["total_output_tokens"]) == (4, 4, 38)


def test_step_times_from_a_file_give_figures_by_hand(trace: Path, linear: Path, servecast: Servecast) -> None:
    """Alone on a 10 ms engine, 8 to 11 tokens: first token after one step, every further one after another."""
    _, out, _ = servecast("simulate", *LLAMA, "--trace", trace, "--step-time-model", linear, "--json")
    summary = json.loads(out)
    assert summary["p99_ttft_ms"] == pytest.approx(10)
    assert summary["mean_itl_ms"] == pytest.approx(10)
    assert summary["mean_e2el_ms"] == pytest.approx((80 + 90 + 100 + 110) / 4)
    assert summary["num_steps"] == 38
    assert summary["duration"] == pytest.approx(3.11)


def test_limit_and_rate_scale_shape_the_trace(trace: Path, linear: Path, servecast: Servecast) -> None:
    """The first three requests at twice the rate: the last arrives at 1 s and takes 100 ms."""
    options = ("--limit", "3", "--rate-scale", "2", "--step-time-model", linear)
    _, out, _ = servecast("simulate", *LLAMA, "--trace", trace, *options, "--json")
    assert json.loads(out)["arrived"] == 3
    assert json.loads(out)["duration"] == pytest.approx(1.1)


def test_a_request_rate_shapes_the_trace_too(trace: Path, linear: Path, servecast: Servecast) -> None:
    """Four at 8 a second: the last arrives at 0.5 s and takes 110 ms."""
    options = ("--request-rate", "8", "--step-time-model", linear)
    _, out, _ = servecast("simulate", *LLAMA, "--trace", trace, *options, "--json")
    assert json.loads(out)["duration"] == pytest.approx(0.61)
    _, out, _ = servecast("trace", "inspect", trace, "--request-rate", "8", "--json")
    assert json.loads(out)["duration_s"] == pytest.approx(0.5)


def test_engine_flags_reach_the_engine(trace: Path, servecast: Servecast) -> None:
    """Without graphs no step replays one; with an override the engine has those blocks."""
    flags = ("--enforce-eager", "--num-gpu-blocks-override", "9000")
    _, out, _ = servecast("simulate", *LLAMA, "--trace", trace, *flags, "--json")
    assert json.loads(out)["cudagraph_step_fraction"] == 0
    assert json.loads(out)["num_gpu_blocks"] == 9000


def test_a_pasted_vllm_serve_line_is_taken_as_it_is(trace: Path, servecast: Servecast) -> None:
    """Flags that change nothing are named on stderr, the others count."""
    pasted = ("--", "vllm", "serve", "meta-llama/Llama-3.1-8B", "--enforce-eager", "--port", "80")
    status, out, err = servecast("simulate", "--gpu", "h100-sxm", "--trace", trace, "--json", *pasted)
    assert status == 0
    assert json.loads(out)["cudagraph_step_fraction"] == 0
    assert "--port changes nothing here" in err


def test_out_keeps_everything_in_a_folder(tmp_path: Path, trace: Path, servecast: Servecast) -> None:
    """summary.json is what --json prints; a row a request, a row a step."""
    out = tmp_path / "results"
    _, printed, err = servecast("simulate", *LLAMA, "--trace", trace, "--out", out, "--json")
    assert json.loads((out / "summary.json").read_text()) == json.loads(printed)
    assert len(pd.read_csv(out / "requests.csv")) == 4
    assert len(pd.read_csv(out / "steps.csv")) == json.loads(printed)["num_steps"]
    assert f"results are in {out}" in err


def test_the_same_call_gives_the_same_bytes(tmp_path: Path, trace: Path, servecast: Servecast) -> None:
    """Apart from how long the call itself took."""
    for name in ("one", "two"):
        servecast("simulate", *LLAMA, "--trace", trace, "--out", tmp_path / name)
    one, two = ((tmp_path / name) for name in ("one", "two"))
    for name in ("requests.csv", "steps.csv", "latency.png", "timeline.png", "report.html", "timeline.json"):
        assert (one / name).read_bytes() == (two / name).read_bytes()
    timed = re.compile(r'"wall_time_s": [\d.e-]+')
    first, second = (timed.sub("", (folder / "summary.json").read_text()) for folder in (one, two))
    assert first == second


def test_the_step_log_has_a_line_for_each_step(tmp_path: Path, trace: Path, servecast: Servecast) -> None:
    """The first step prefills the first request's 100 tokens."""
    log = tmp_path / "steps.jsonl"
    _, out, _ = servecast("simulate", *LLAMA, "--trace", trace, "--step-log", log, "--json")
    steps = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(steps) == json.loads(out)["num_steps"]
    assert steps[0]["n"] == 100
    assert sorted(path.name for path in tmp_path.iterdir()) == ["steps.jsonl", "trace.csv"]


def test_rejected_requests_are_counted_with_their_reason(trace: Path, servecast: Servecast) -> None:
    """Prompts of 100 to 103 tokens, 102 at most: two never run, and nobody waits for them."""
    status, out, err = servecast("simulate", *LLAMA, "--trace", trace, "--max-model-len", "102", "--json")
    summary = json.loads(out)
    assert status == 0
    assert (summary["arrived"], summary["completed"], summary["rejected"]) == (4, 2, 2)
    assert "2 of 4 requests were rejected, the first for a prompt of 102 tokens" in err


def test_memory_says_what_vllm_will_log(servecast: Servecast) -> None:
    """The ledger adds up to a KV cache size in tokens and a maximum concurrency."""
    status, out, _ = servecast("memory", *LLAMA)
    assert status == 0
    assert re.search(r"^weights +1[45]\.\d\d$", out, re.MULTILINE)
    assert re.search(r"^GPU KV cache size: [\d,]+ tokens", out, re.MULTILINE)
    assert re.search(r"^Maximum concurrency for 131,072 tokens per request: \d", out, re.MULTILINE)


def test_memory_json_has_the_stable_keys_and_explain_adds_the_ledger(servecast: Servecast) -> None:
    """8,030,261,248 parameters, as published."""
    _, out, _ = servecast("memory", *LLAMA, "--json")
    plan = json.loads(out)
    assert not set(MEMORY_KEYS) - set(plan)
    assert (plan["num_parameters"], plan["feasible"], plan["reason"]) == (8_030_261_248, True, None)
    _, explained, _ = servecast("memory", *LLAMA, "--json", "--explain")
    assert {line["group"] for line in json.loads(explained)["ledger"]} >= {"weights", "activations", "KV cache"}


def test_memory_exits_0_for_what_does_not_fit_and_says_why(servecast: Servecast) -> None:
    """A plan was made; that it does not fit is its answer."""
    status, out, _ = servecast("memory", "Llama-3.1-70B", "--gpu", "h100-sxm")
    assert status == 0
    assert "Does not fit: " in out


def test_explain_shows_formula_and_source(servecast: Servecast) -> None:
    """Each line with the numbers that went into it."""
    _, out, _ = servecast("memory", *LLAMA, "--explain")
    assert "79.19 GiB x 0.92" in out


@pytest.mark.parametrize(("command", "name"), [("models", "meta-llama/Llama-3.1-8B"), ("gpus", "h100-sxm")])
def test_what_is_built_in_can_be_listed(command: str, name: str, servecast: Servecast) -> None:
    """As a table, as JSON, and one in detail."""
    status, out, _ = servecast(command)
    assert status == 0
    assert re.search(rf"^{name} ", out, re.MULTILINE)
    listed = json.loads(servecast(command, "--json").out)[command]
    assert name in {entry["name"] for entry in listed}
    assert servecast(command, name).out.startswith(f"name: {name}\n")
    assert json.loads(servecast(command, name, "--json").out)["name"] == name


def test_version_names_the_package(servecast: Servecast) -> None:
    """`servecast version`, and `servecast --version` as commands have it."""
    assert servecast("version") == servecast("--version")
    assert re.fullmatch(rf"servecast {sim.__version__} \((compiled|interpreted) engine\)\n", servecast("version").out)


def test_no_command_shows_the_help(servecast: Servecast) -> None:
    """The same as --help."""
    assert servecast() == servecast("--help")
    assert "simulate" in servecast().out


def test_help_comes_at_once() -> None:
    """Listing the commands imports none of what they need."""
    call = _importing({"numpy", "pandas", "matplotlib", "transformers", "simpy", "pydantic", "yaml"}, "--help")
    assert call.stderr.strip() == ""
    assert "simulate" in call.stdout


def test_a_simulation_starts_without_what_it_does_not_need(trace: Path) -> None:
    """No coloured text, plots, DataFrames, masked arrays, hub or search where one result is printed into a pipe."""
    heavy = {
        "rich",
        "matplotlib",
        "pandas",
        "pyarrow",
        "numpy.ma",
        "scipy",
        "transformers",
        "optuna",
        "ray",
        "sim.search",
    }
    call = _importing(heavy, "simulate", *LLAMA, "--trace", str(trace), "--json")
    assert "4 requests in" in call.stderr
    assert call.returncode == 0


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="the system does not list a process's threads")
def test_the_command_starts_no_threads_that_it_leaves_idle() -> None:
    """Numpy's linear algebra would start one for each core and keep them spinning."""
    code = (
        "import os, sim.cli\n"
        "def run(args):\n"
        "    import numpy\n"
        "    return len(os.listdir('/proc/self/task'))\n"
        "sim.cli.run = run; sim.cli.main()"
    )
    own = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    assert subprocess.run([sys.executable, "-c", code], env=own, check=False).returncode == 1


def _importing(heavy: set[str], *args: str) -> subprocess.CompletedProcess[str]:
    """A call of the command line that fails, naming them, where it imports any of the heavy modules."""
    code = f"import sys; from sim.cli import run; sys.exit(run(sys.argv[1:]) or str({heavy} & set(sys.modules) or '') or 0)"
    return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=False)


def parameters(command: Any) -> Iterator[Any]:
    """Those of a command and of its subcommands."""
    yield from command.params
    for subcommand in getattr(command, "commands", {}).values():
        yield from parameters(subcommand)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_is_for(name: str) -> None:
    found = parameters(typer.main.get_command(import_module(f"sim.cli.{name}").app))
    assert [one.name for one in found if one.param_type_name == "option" and not one.help] == []
