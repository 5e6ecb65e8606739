"""The process's streams and signals: what cannot be said or written ends as with other Unix tools, never in a traceback."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SERVECAST = [sys.executable, "-c", "from sim.cli import main; main()"]
HEADER = "arrival_s,prompt_tokens,output_tokens\n"


def shell(*args: str, streams: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """The command with these redirections, and what it still says."""
    command = f"{shlex.join([*SERVECAST, *args])} {streams}"
    return subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )


FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")


@pytest.mark.parametrize(
    ("args", "streams", "status", "said"),
    [
        pytest.param("version", ">/dev/full", 1, "write error: No space left on device", marks=FULL),
        ("version", ">&-", 1, "write error: Bad file descriptor"),
        ("version", ">&- 2>&-", 1, ""),
        ("version", "2>&- <&-", 0, ""),
        pytest.param("gpus h10", ">&- 2>/dev/full", 2, "", marks=FULL),
        ("gpus h10", "2>&-", 2, ""),
        pytest.param("trace generate f.csv -n 2", "2>/dev/full", 1, "", marks=FULL),
        ("trace generate f.csv -n 2", "2>&-", 1, ""),
    ],
)
def test_streams_that_cannot_be_written(
    args: str, streams: str, status: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """stdout lost is status 1, as are words lost on stderr; a greater trouble keeps its own status."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    call = shell(*args.split(), streams=streams)
    assert call.returncode == status
    assert call.stderr == (f"servecast: {said}\n" if said else "")


def test_an_encoding_without_the_characters(tmp_path: Path) -> None:
    """They are no reason to fail, and errors write them as escapes."""
    trace = tmp_path / "\u00fc.csv"
    trace.write_text(f"{HEADER}0,1,1\n")
    shown = shell("trace", "inspect", str(trace), PYTHONIOENCODING="ascii")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert ".csv" in shown.stdout
    refused = shell("trace", "inspect", f"{trace}\u20ac", PYTHONIOENCODING="ascii")
    assert refused.returncode == 2
    assert "\\u20ac: there is no such file" in refused.stderr


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="there is no SIGHUP here")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_ends_it_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    """No half-written files, no folders made for them, no words; the status says which signal it was."""
    options = [
        "--gpu",
        "h100-sxm",
        "--trace",
        "chat",
        "--limit",
        "5",
        "--no-intervals",
        "--out",
        "new/out",
        "--step-log",
        "steps.jsonl",
    ]
    ended = (
        "import signal, os, sim.report.folder; from sim.cli import main;"
        f"signal.signal(signal.{name}, signal.SIG_DFL);"  # nohup ignores SIGHUP for all that it starts
        f"sim.report.folder.save = lambda *_: os.kill(os.getpid(), signal.{name}); main()"
    )
    command = [sys.executable, "-c", ended, "simulate", "Llama-3.1-8B", *options]
    call = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert call.returncode == 128 + getattr(signal, name)
    assert call.stderr == ""
    assert [path.name for path in tmp_path.iterdir()] == ["steps.jsonl"]
