from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from sim.cli import run


class Call(NamedTuple):
    """What a call of the command line left behind."""

    status: int
    out: str
    err: str


Servecast = Callable[..., Call]

HEAR_CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
"""For a child: where the tests run in a shell's background SIGINT is ignored, and children inherit that."""


@pytest.fixture
def servecast(capsys: pytest.CaptureFixture[str]) -> Servecast:
    """Calls the command line in this process."""

    def call(*args: str | Path) -> Call:
        status = run([str(arg) for arg in args])
        return Call(status, *capsys.readouterr())

    return call


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Four requests, a second apart."""
    path = tmp_path / "trace.csv"
    rows = "".join(f"{second},{100 + second},{8 + second}\n" for second in range(4))
    path.write_text(f"arrival_s,prompt_tokens,output_tokens\n{rows}")
    return path


@pytest.fixture
def linear(tmp_path: Path) -> Path:
    """Step times of 10 ms, whatever the step."""
    path = tmp_path / "linear.yaml"
    path.write_text("{kind: linear, base_s: 0.01, per_token_s: 0.0, per_context_token_s: 0.0}")
    return path
