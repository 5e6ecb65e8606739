"""Schedules recorded from the real vLLM scheduler are reproduced step by step."""

from pathlib import Path

import pytest

from tests.conformance.__main__ import main
from tests.conformance.case import load_case
from tests.conformance.compare import first_difference, request_difference
from tests.conformance.engines import ENGINES

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
CASES = sorted(GOLDEN.glob("schedule_*.json.gz"))


def test_the_recordings_are_here() -> None:
    """Thirty-eight recorded cases ship with the tests."""
    assert len(CASES) == 38


@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.name.removeprefix("schedule_").removesuffix(".json.gz"))
def test_an_engine_reproduces_the_recorded_schedule(path: Path, engine: str) -> None:
    """Order, tokens, blocks, hits, evictions, preemptions, queues and times are those of vLLM."""
    case = load_case(path)
    run = ENGINES[engine](case)
    assert first_difference(case, run.steps) is None
    assert request_difference(case, run.requests) is None


def test_what_is_no_recording_is_told_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2; a case that passes has status 0."""
    other = tmp_path / "defaults.json"
    other.write_text("{}")
    assert main([str(CASES[0])]) == 0
    with pytest.raises(SystemExit, match="2"):
        main([str(other)])
    assert f"{other} is no recorded schedule (KeyError: 'requests'); name cases" in capsys.readouterr().err
