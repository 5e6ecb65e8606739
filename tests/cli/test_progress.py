import io
import sys

import pytest

from sim.cli import progress
from sim.cli.progress import progress_bar


class Terminal(io.StringIO):
    """A stderr that somebody watches."""

    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, *, patience_s: float) -> str:
    """What a terminal gets of a run of ten requests."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "PATIENCE_S", patience_s)
    monkeypatch.setattr(progress, "REFRESH_S", 0.0)
    with progress_bar("simulating") as advance:
        assert advance is not None
        for done in range(11):
            advance(done, 10)
    return terminal.getvalue()


def test_a_long_run_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many of how many, on stderr."""
    assert "10/10" in shown(monkeypatch, patience_s=0.0)


def test_a_short_run_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar that flashes by only distracts."""
    assert shown(monkeypatch, patience_s=60.0) == ""


def test_nobody_watching_means_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log file is no place for one."""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress_bar("simulating") as advance:
        assert advance is None
