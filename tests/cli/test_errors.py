"""Every bad input that a user could plausibly give: one sentence, exit status 2, nothing on stdout."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import HEAR_CTRL_C, Call, Servecast

HEADER = "arrival_s,prompt_tokens,output_tokens\n"
BAD_CALLS = {
    "simulte": "Did you mean simulate?",
    "simulate": "Missing option '--gpu'",
    "simulate --gpu h100-sxm --trace chat": "MODEL is missing",
    "simulate Lama-3.1-8B --gpu h100-sxm --trace chat": "Did you mean Llama-3.1-8B",
    "simulate Llama-3.1-8B --gpu h10 --trace chat": "Did you mean h100",
    "simulate Llama-3.1-8B --gpu nowhere.yaml --trace chat": "nowhere.yaml",
    "simulate Llama-3.1-8B --gpu h100-sxm --trace nowhere.csv": "nowhere.csv",
    "simulate Llama-3.1-8B --gpu h100-sxm --trce chat": "Did you mean --trace",
    "simulate Llama-3.1-8B --gpu h100-sxm --trace chat --max-num-sqs 8": "Did you mean --max-num-seqs",
    "simulate Llama-3.1-8B --gpu h100-sxm --trace chat --limit 0": "at least 1",
    "simulate Llama-3.1-8B --gpu h100-sxm --trace chat --limit many": "valid integer",
    "simulate Llama-3.1-8B --gpu h100-sxm --trace chat --rate-scale 0": "above 0",
    "simulate Llama-3.1-8B --gpu h100-sxm --trace chat --vllm-version newest": "newest",
    "simulate Llama-3.1-8B --gpu h100-sxm --trace chat --max-num-seqs 64 --max-num-batched-tokens 32": "max_num_seqs",
    "simulate Llama-3.1-8B --gpu h100-sxm --trace chat --max-num-seqs 0": "max_num_seqs",
    "simulate Llama-3.1-8B --gpu h100-sxm --trace chat --max-num-seqs -5": "max_num_seqs",
    "simulate Llama-3.1-8B --gpu h100-sxm --trace chat --max-model-len 200000": "131072",
    "simulate Llama-3.1-8B --gpu h100-sxm --trace chat --gpu-memory-utilization 1.5": "gpu_memory_utilization",
    "simulate Llama-3.1-8B --gpu h100-sxm --trace chat -tp 3": "tensor_parallel_size",
    "simulate Llama-3.1-8B --gpu h100-sxm --trace chat --ubatch-size 3": "not simulated",
    "simulate Qwen3-30B-A3B --gpu h100-sxm --trace chat -dp 2 -ep --enable-dbo": "deepep_low_latency",
    "simulate Llama-3.1-8B --gpu h100-sxm --trace chat --config nowhere.yaml": "nowhere.yaml",
    "simulate Llama-3.1-8B --gpu h100-sxm --trace chat --composition best": "additive",
    "simulate Llama-3.1-8B --gpu h100-sxm --trace chat --step-time-model nowhere.yaml": "nowhere.yaml",
    "simulate Llama-3.1-8B --gpu h100-sxm --trace chat -- vllm bench": "vllm serve",
    "simulate Llama-3.1-8B --gpu h100-sxm --trace chat -- vllm serve Qwen/Qwen3-8B": "Two models",
    "simulate Llama-3.1-70B --gpu h100-sxm --trace chat": "Llama-3.1-70B",
    "simulate Llama-3.1-405B --gpu l4 --trace chat": "GiB",
    "simulate Llama-3.1-8B --gpu h100-sxm --trace chat --num-gpu-blocks-override 10": "KV",
    "optimize Llama-3.1-8B --trace chat": "Missing option '--gpu'",
    "optimize Llama-3.1-8B --gpu h100-sxm --trace chat --slo ttft=1s": "must look like ttft_p99=500ms",
    "optimize Llama-3.1-8B --gpu h100-sxm --trace chat --objective speed": "one of throughput",
    "optimize Llama-3.1-8B --gpu h100-sxm --trace chat --objective goodput": "give some",
    "optimize Llama-3.1-8B --gpu mi355x --trace chat --objective cost": "give one with --price (USD per GPU hour)",
    "simulate Llama-3.1-8B --gpu mi355x --trace chat --price -1": "--price must be a positive number of USD per GPU hour",
    "gpus --yaml": "name its GPU",
    "gpus l4 --schema": "--schema is about every profile",
    "gpus l4 --yaml --json": "leave one of them out",
    "optimize Llama-3.1-8B --gpu h100-sxm --trace chat --space nowhere.yaml": "nowhere.yaml",
    "optimize Llama-3.1-8B --gpu h100-sxm --trace chat --trials 0": "--trials must be at least 1",
    "optimize Llama-3.1-8B --gpu h100-sxm --trace chat --workers -1": "--workers must be at least 1",
    "optimize Llama-3.1-8B --gpu h100-sxm --trace chat --gpus 0": "at least 1, got 0",
    "optimize Llama-3.1-8B --gpu h100-sxm --trace chat --executor slurm": "slurm",
    "optimize Llama-3.1-8B --gpu h100-sxm --trace chat --router best": "best",
    "optimize Llama-3.1-405B --gpu l4 --trace chat --limit 5 --trials 2 --workers 1": "none of",
    "capacity Llama-3.1-8B --gpu h100-sxm --trace chat": "give some, such as --slo",
    "capacity Llama-3.1-8B --gpu h100-sxm --trace chat --slo ttft_p99=1s --rate 0": "--rate must be",
    "capacity Llama-3.1-8B --gpu h100-sxm --trace chat --slo ttft_p99=1s --replicas 0": "--replicas must be",
    "capacity Llama-3.1-405B --gpu l4 --trace chat --slo ttft_p99=1s": "GiB",
    "memory Llama-3.1-8B": "Missing option '--gpu'",
    "memory no-such-model --gpu l4": "no-such-model",
    "models no-such-model": "no-such-model",
    "gpus h10": "Did you mean h100",
    "gpus --jsn": "--json",
    "trace inspect nowhere.csv": "nowhere.csv",
    "trace inspekt": "inspect",
}


@pytest.mark.parametrize(("call", "said"), BAD_CALLS.items(), ids=BAD_CALLS)
def test_a_bad_call_ends_in_one_sentence(call: str, said: str, servecast: Servecast) -> None:
    """It names the place, and the nearest name where there is one."""
    assert_one_sentence(servecast(*call.split()), said)


def assert_one_sentence(call: Call, said: str) -> None:
    """Status 2, nothing on stdout, and a line on stderr that says so."""
    assert (call.status, call.out) == (2, "")
    assert call.err.startswith("servecast: error: ")
    assert call.err.count("\n") == 1
    assert said in call.err


BAD_TRACES = {
    "empty": (b"", "empty"),
    "binary": (bytes(range(256)) * 8, "trace.csv"),
    "no-column": (b"arrival_s,prompt_tokens\n0,5\n", "output_tokens"),
    "no-request": (HEADER.encode(), "trace.csv"),
    "nan": (f"{HEADER}nan,5,5\n".encode(), "arrival_s"),
    "negative": (f"{HEADER}0,-5,5\n".encode(), "prompt_tokens"),
    "zero-output": (f"{HEADER}0,5,0\n".encode(), "output_tokens"),
    "unsorted": (f"{HEADER}1,5,5\n0,5,5\n".encode(), "3"),
    "huge": (f"{HEADER}0,10000000000,5\n".encode(), "prompt_tokens"),
}


@pytest.mark.parametrize(("content", "said"), BAD_TRACES.values(), ids=BAD_TRACES)
def test_a_bad_trace_ends_in_one_sentence(content: bytes, said: str, tmp_path: Path, servecast: Servecast) -> None:
    """It names the file and what is wrong with it."""
    path = tmp_path / "trace.csv"
    path.write_bytes(content)
    call = servecast("simulate", "Llama-3.1-8B", "--gpu", "h100-sxm", "--trace", path)
    assert_one_sentence(call, said)
    assert "trace.csv" in call.err


def test_composition_is_refused_where_it_would_change_nothing(trace: Path, linear: Path, servecast: Servecast) -> None:
    """Given step times leave nothing to compose."""
    options = ("--composition", "max", "--step-time-model", linear)
    status, _, err = servecast("simulate", "Llama-3.1-8B", "--gpu", "h100-sxm", "--trace", trace, *options)
    assert status == 2
    assert "--composition changes nothing" in err


def test_results_are_not_written_among_foreign_files(tmp_path: Path, trace: Path, servecast: Servecast) -> None:
    """Told before the simulation, not after it."""
    call = ("simulate", "Llama-3.1-8B", "--gpu", "h100-sxm", "--trace", trace, "--out", tmp_path)
    status, out, err = servecast(*call)
    assert (status, out) == (2, "")
    assert "already holds `trace.csv`" in err


def test_an_unwritable_step_log_is_one_sentence(tmp_path: Path, trace: Path, servecast: Servecast) -> None:
    """A folder that does not exist is no place for a file."""
    log = tmp_path / "nowhere/steps.jsonl"
    call = ("simulate", "Llama-3.1-8B", "--gpu", "h100-sxm", "--trace", trace, "--step-log", log)
    status, _, err = servecast(*call)
    assert status == 2
    assert "--step-log" in err


SERVECAST = [sys.executable, "-c", "from sim.cli import main; main()"]


def test_the_process_exits_with_status_2_and_no_traceback() -> None:
    """What `run` returns is what the shell sees."""
    call = subprocess.run([*SERVECAST, "gpus", "h10"], capture_output=True, text=True, check=False)
    assert (call.returncode, call.stdout) == (2, "")
    assert call.stderr.startswith("servecast: error: GPU `h10`")


def test_a_reader_who_leaves_early_is_no_error() -> None:
    """`servecast models | true` says nothing on stderr."""
    pipeline = f"{shlex.join(SERVECAST)} models | true; exit ${{PIPESTATUS[0]}}"
    call = subprocess.run(["bash", "-c", pipeline], capture_output=True, text=True, check=False)
    assert (call.returncode, call.stderr) == (0, "")


def test_an_interrupted_run_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-C is no error of the program: status 130, one line, no half-written files."""
    options = ["--gpu", "h100-sxm", "--trace", "chat", "--out", "out", "--step-log", "steps.jsonl"]
    interrupted = (
        f"{HEAR_CTRL_C} import os; from sim.cli import main; from sim.cluster import simulation;"
        "simulation.simulate = lambda *_, **__: os.kill(os.getpid(), signal.SIGINT); main()"
    )
    command = [sys.executable, "-c", interrupted, "simulate", "Llama-3.1-8B", *options]
    call = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (call.returncode, call.stdout) == (130, "")
    assert call.stderr == "servecast: interrupted\n"
    assert list(tmp_path.iterdir()) == []
