"""A workload's file on the command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sim.workload.generate import generate
from sim.workload.lengths import Fixed
from sim.workload.load import trace_sha256
from sim.workload.readers import read_trace
from sim.workload.spec import WorkloadSpec
from tests.cli.conftest import Servecast

SMALL = WorkloadSpec(40, 20.0, prompt_tokens=Fixed(50), output_tokens=Fixed(9))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """The same workload as a file."""
    found = tmp_path / "small.yaml"
    found.write_text("num_requests: 40\nrequest_rate: 20\nprompt_tokens: 50\noutput_tokens: 9\n")
    return found


def test_the_command_line_takes_a_file(small: Path, servecast: Servecast) -> None:
    """`--trace` draws with `--seed`; `trace generate` writes the same requests, by flags, file or name."""
    command = (
        "simulate",
        "Llama-3.1-8B",
        "--gpu",
        "h100-sxm",
        "--trace",
        str(small),
        "--seed",
        "3",
        "--json",
        "--no-intervals",
    )
    ran = servecast(*command)
    assert json.loads(ran.out)["trace_sha256"] == trace_sha256(generate(SMALL, 3))
    assert f"{small} is a workload: its requests are drawn with seed 3." in ran.err
    out = small.with_suffix(".csv")
    assert servecast("trace", "generate", str(small), str(out), "--seed", "3", "--output-tokens", "5").status == 0
    written = read_trace(out)
    assert written.arrival_s.tolist() == generate(SMALL, 3).arrival_s.tolist()
    assert set(written.output_tokens.tolist()) == {5}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nope", "o.csv"), "the workload 'nope' is unknown; there are agentic, "),
        (("chat", "rag", "o.csv"), "a trace is generated from one workload, got chat, rag; leave out all but one"),
        (("chat", "o.csv", "--profile", "rag"), "a trace is generated from one workload, got chat, rag"),
        (("{mix}", "o.csv", "-n", "5"), "flags change a workload of one class of clients, got 2 classes"),
        (("{mix}", "{mix}"), "would overwrite what is read"),
        (("{wrong}", "o.csv"), "wrong.yaml: `prompt_tokens`: a length must be from 1 to 2,147,483,647 tokens, got 0"),
    ],
)
def test_what_cannot_be_generated_is_refused(
    arguments: tuple[str, ...], message: str, tmp_path: Path, servecast: Servecast
) -> None:
    """In a sentence, with exit status 2."""
    files = {"mix": tmp_path / "mix.yaml", "wrong": tmp_path / "wrong.yaml"}
    files["mix"].write_text("clients: [{name: a, share: 1}, {name: b, share: 1}]\n")
    files["wrong"].write_text("prompt_tokens: 0\n")
    ran = servecast("trace", "generate", *(argument.format(**files) for argument in arguments))
    assert ran.status == 2
    assert message in ran.err


def test_a_workload_is_fitted_to_a_trace(tmp_path: Path, servecast: Servecast) -> None:
    """Written as a file that is a trace, with both their figures side by side; never over what is read."""
    target = tmp_path / "like.yaml"
    ran = servecast("trace", "fit", "chat", target, "--limit", "300")
    assert (ran.status, ran.err) == (0, f"Wrote {target}.\n")
    assert [line.split()[-2:] for line in ran.out.splitlines()[:2]] == [["trace", "drawn"], ["300", "300"]]
    assert len(read_trace(target)) == 300
    both = json.loads(servecast("trace", "fit", "chat", target, "--json").out)
    assert both["drawn"]["prompt_tokens"]["mean"] == pytest.approx(both["trace"]["prompt_tokens"]["mean"], rel=0.05)
    assert "would overwrite what is read" in servecast("trace", "fit", target, target).err
    ran = servecast("trace", "fit", "chat", "--out", tmp_path / "again.yaml", "--limit", "200")
    assert ran.status == 0
    assert len(read_trace(tmp_path / "again.yaml")) == 200
    for given in ((), (target, "--out", target)):
        ran = servecast("trace", "fit", "chat", *given)
        assert (ran.status, f"got {len(given) and 2} of FILE and --out" in ran.err) == (2, True)


def test_a_workload_comes_from_standard_input(tmp_path: Path) -> None:
    """As a trace does."""
    process = [sys.executable, "-c", "from sim.cli import main; main()"]
    command = [*process, "trace", "generate", "-", str(tmp_path / "t.csv")]
    subprocess.run(command, input=b"num_requests: 7\n", check=True, capture_output=True)
    assert len(read_trace(tmp_path / "t.csv")) == 7
    ran = subprocess.run(command, input=b"num_request: 7\n", check=False, capture_output=True)
    assert (ran.returncode, b"stdin: `num_request` is not a known key" in ran.stderr) == (2, True)
