"""Bundled traces are found by name from anywhere."""

from pathlib import Path

import pytest

from sim.errors import TraceError
from sim.workload.readers import read_trace


@pytest.mark.parametrize(
    ("name", "num_requests"),
    [
        ("chat", 1000),
        ("chat.csv", 1000),
        ("traces/chat.csv", 1000),
        ("code", 1000),
        ("multi-turn", 400),
        ("batch", 300),
    ],
)
def test_bundled_traces_go_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, num_requests: int
) -> None:
    """A name, a file name and the path from the repository all work in any folder."""
    monkeypatch.chdir(tmp_path)
    assert len(read_trace(name)) == num_requests


def test_a_file_of_ones_own_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that exists is never taken for a bundled one."""
    monkeypatch.chdir(tmp_path)
    Path("chat").write_text("arrival_s,prompt_tokens,output_tokens\n0,1,1\n")
    assert len(read_trace("chat")) == 1


def test_a_path_elsewhere_is_no_name(tmp_path: Path) -> None:
    """A missing file in some folder is missing, whatever it is called."""
    with pytest.raises(TraceError, match="there is no such file"):
        read_trace(tmp_path / "chat.csv")
