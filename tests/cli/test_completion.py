"""Completion, asked as the shells ask: their own functions, made by `--show-completion`, run in bash."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sim.cli.completion import gpu_names
from sim.cli.completion_shells import VARIABLE, script
from sim.specs.hardware import known_gpus
from tests.cli.conftest import Servecast

BIN = Path(sys.executable).parent


def shell(line: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run by bash, with the command `servecast` on the path."""
    environment = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"} | variables
    return subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, check=False)


Offered = Callable[..., list[str]]


@pytest.fixture
def offered(servecast: Servecast, monkeypatch: pytest.MonkeyPatch) -> Offered:
    """What bash would offer for the last of some words: its function puts them into these variables, as tested below."""

    def offered(*words: str) -> list[str]:
        monkeypatch.setenv("COMP_WORDS", "\n".join(words))
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        monkeypatch.setenv(VARIABLE, "complete_bash")
        _, out, err = servecast()
        assert err == ""
        return out.split()

    return offered


SIMULATE = ("servecast", "simulate", "Llama-3.1-8B")


@pytest.mark.parametrize(
    ("words", "there"),
    [
        (("servecast", "si"), ["simulate"]),
        (("servecast", "trace", ""), ["inspect", "convert", "generate", "fit", "slice", "merge", "anonymise"]),
        (
            ("servecast", "simulate", "Llama-3.1-405B-"),
            ["Llama-3.1-405B-Instruct-FP8", "Llama-3.1-405B-Instruct-NVFP4"],
        ),
        ((*SIMULATE, "--gpu", "h100-"), ["h100-nvl", "h100-pcie", "h100-sxm"]),
        ((*SIMULATE, "--gpu", "=", "h200"), ["h200-sxm"]),
        (
            (*SIMULATE, "-tp", "2", "--max-num-seqs", "8", "--trace", "c"),
            ["chat", "chatbot", "code", "code-completion"],
        ),
        ((*SIMULATE, "--request"), ["--request-rate"]),
        ((*SIMULATE, "--gpu", "l4", "--gpu-mem"), ["--gpu-memory-utilization"]),
        ((*SIMULATE, "--no-enable-pre"), ["--no-enable-prefix-caching"]),
        ((*SIMULATE, "--kv-cache-dtype", "fp8_"), ["fp8_e4m3", "fp8_e5m2"]),
        ((*SIMULATE, "--composition", "a"), ["additive"]),
        ((*SIMULATE, "--preset", "c"), ["chat"]),
        (("servecast", "compare", "Llama-3.1-8B", "--vary", "batch"), ["batching"]),
        (("servecast", "capacity", "Llama-3.1-8B", "--router", "round"), ["round_robin"]),
        (("servecast", "simulate", "--gpu", "l4", "--", ""), ["vllm"]),
        (("servecast", "simulate", "--gpu", "l4", "--", "vllm", "serve", "openai/gpt-oss-1"), ["openai/gpt-oss-120b"]),
        (
            (*SIMULATE, "--", "vllm", "serve", "Llama-3.1-8B", "--max-num-s"),
            ["--max-num-seqs", "--max-num-scheduled-tokens"],
        ),
        (("servecast", "validate", "runs.json", "--scheduling-policy", "f"), ["fcfs", "fair_share"]),
        (("servecast", "gpus", "l40"), ["l40s"]),
        ((*SIMULATE, "--step-log", ""), []),
    ],
)
def test_bash_offers_what_fits(words: tuple[str, ...], there: list[str], offered: Offered) -> None:
    """Commands, models, GPUs, traces, flags of both kinds and their values, in a pasted line too; else the shell's files."""
    assert sorted(offered(*words)) == sorted(there)


@pytest.mark.parametrize(
    ("words", "there"),
    [
        ((*SIMULATE, "--gpu", "=", "h200"), "h200-sxm\n"),
        ((*SIMULATE, "--bogus", "1", "--max-num-seqs", "x", "--zz"), "\n"),
    ],
)
def test_its_own_function_asks_in_bash(words: tuple[str, ...], there: str) -> None:
    """That which `--show-completion` prints; nothing is said between two keys."""
    call = shell(
        f"{script('bash')}\nCOMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}\n"
        '_servecast_completion servecast; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    assert (call.stdout, call.stderr) == (there, "")


@pytest.mark.parametrize(
    "words",
    [
        ("servecast", "simulate", "model", "no-such"),
        ("servecast", "simulte", "--g"),
        (*SIMULATE, "--bogus", "1", "--max-num-seqs", "x", "--zz"),
    ],
)
def test_what_is_wrong_so_far_is_no_noise(words: tuple[str, ...], offered: Offered) -> None:
    """Nothing is offered, and nothing said between two keys."""
    assert offered(*words) == []


def test_the_script_is_what_is_shown() -> None:
    assert shell('eval "$(servecast --show-completion bash)"; complete -p servecast').stdout.endswith(" servecast\n")


def test_it_can_be_installed(tmp_path: Path) -> None:
    """In the user's own files, of which a new bash knows; each shell has its own."""
    assert shell("servecast --install-completion bash", HOME=str(tmp_path)).returncode == 0
    known = shell("source ~/.bashrc; complete -p servecast", HOME=str(tmp_path))
    assert "-F _servecast_completion servecast" in known.stdout
    said = shell("servecast --install-completion", HOME=str(tmp_path), SHELL="/usr/bin/fish")
    assert (tmp_path / ".config/fish/completions/servecast.fish").is_file()
    assert "Completion for fish is in " in said.stderr
    assert shell("servecast --install-completion zsh", HOME=str(tmp_path)).returncode == 0
    assert (tmp_path / ".zfunc/_servecast").read_text().startswith("#compdef servecast")


def test_zsh_and_fish_are_answered_in_their_own_form() -> None:
    """With the help of a flag beside it; fish asks first whether there is anything."""
    line = {"_TYPER_COMPLETE_ARGS": "servecast simulate --request"}
    zsh = shell("servecast", _SERVECAST_COMPLETE="complete_zsh", **line)
    assert zsh.stdout.startswith('_arguments \'*: :(("--request-rate":"Requests a second')
    fish = shell("servecast", _SERVECAST_COMPLETE="complete_fish", _TYPER_COMPLETE_FISH_ACTION="get-args", **line)
    assert fish.stdout.startswith("--request-rate\tRequests a second")
    for words, status in (("servecast simulate --request", 0), ("servecast simulate --nothing", 1)):
        asked = {"_TYPER_COMPLETE_FISH_ACTION": "is-args", "_TYPER_COMPLETE_ARGS": words}
        assert shell("servecast", _SERVECAST_COMPLETE="complete_fish", **asked).returncode == status


@pytest.mark.parametrize(("own", "args"), [("/bin/tcsh", []), ("", []), ("/bin/bash", ["tcsh"])])
def test_another_shell_is_one_sentence(
    own: str, args: list[str], servecast: Servecast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELL", own)
    status, out, err = servecast("--show-completion", *args)
    assert (status, out) == (2, "")
    assert "completion is there for bash, zsh, fish, got " in err


def test_the_names_of_gpus_are_those_of_their_files() -> None:
    """Completion reads no profile, so as to answer at once."""
    assert gpu_names("") == sorted(gpu.name for gpu in known_gpus())
