"""Schedules recorded from the real vLLM scheduler are reproduced step by step."""

import gzip
import json
from pathlib import Path

import pytest

from tests.conformance.__main__ import difference_of, main
from tests.conformance.case import load_case
from tests.conformance.engines import ENGINES
from tests.properties import EFFORT
from tests.shared import SHARED, needs_shared

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
CASES = sorted(GOLDEN.glob("schedule_*.json.gz"))
NAIVE = ("reference",) if EFFORT >= 1 else ()
"""In a gate the product alone is held against everything in ../shared: there the naive engine takes longer than all else."""


def test_the_recordings_are_here() -> None:
    """Thirty-eight recorded cases ship with the tests."""
    assert len(CASES) == 38


@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.parametrize("path", CASES, ids=lambda path: path.name.removeprefix("schedule_").removesuffix(".json.gz"))
def test_an_engine_reproduces_the_recorded_schedule(path: Path, engine: str) -> None:
    """Order, tokens, blocks, hits, evictions, preemptions, queues and times are those of vLLM."""
    case = load_case(path)
    assert difference_of(case, ENGINES[engine](case)) is None


def by(*engines: str) -> list[str]:
    """The flags that ask for them; each recording is read once for all."""
    return [f"--engine={name}" for name in engines]


@needs_shared
def test_every_version_is_reproduced(capsys: pytest.CaptureFixture[str]) -> None:
    """The recordings of 16 versions, each under its own version's rules, and those of priority with async scheduling."""
    golden = SHARED / "golden"
    paths = [*golden.glob("versions/*/*.json.gz"), *golden.glob("priority_async_victim_*.json")]
    assert main([*map(str, sorted(paths)), *by("fast", "walking", *NAIVE)]) == 0
    assert "235 passed, 0 failed" in capsys.readouterr().out


MODES = sorted(GOLDEN.glob("mode_*.json.gz"))


@pytest.mark.parametrize("engine", sorted(ENGINES))
@pytest.mark.parametrize("path", MODES, ids=lambda path: path.name.removeprefix("mode_").removesuffix(".json.gz"))
def test_an_engine_reproduces_further_modes(path: Path, engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Speculation, stages, adapters, transfers, offload, throttling, limits of the queue, ranks in lock step."""
    assert main([str(path), "--engine", engine]) == 0
    assert capsys.readouterr().out.endswith("1 passed, 0 failed\n")


@needs_shared
def test_all_recordings_of_further_modes(capsys: pytest.CaptureFixture[str]) -> None:
    """Step by step, transfer by transfer, and by the digests of their full logs."""
    golden = SHARED / "golden"
    modes = ("spec", "pp", "lora", "kv_pd", "offload", "knobs", "dp_lb", "dp_wave")
    paths = [path for mode in modes for path in golden.glob(f"{mode}/*.json.gz")]
    assert main([*map(str, sorted(paths)), *by("fast", *NAIVE)]) == 0
    assert "98 passed, 0 failed" in capsys.readouterr().out


def test_a_changed_step_is_a_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each engine that was asked tells it."""
    case = json.loads(gzip.decompress((GOLDEN / "mode_p_basic.json.gz").read_bytes()))
    case["steps"][7]["free"] += 1
    path = tmp_path / "other.json"
    path.write_text(json.dumps(case))
    assert main([str(path), *by("fast", "reference")]) == 1
    out = capsys.readouterr().out
    assert "fast: step 7: free is " in out
    assert "reference: step 7: free is " in out


def test_a_changed_digest_is_a_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where all that is kept of the log agrees."""
    case = json.loads(gzip.decompress((GOLDEN / "mode_p_basic.json.gz").read_bytes()))
    case["result"]["digest_x"] = "0"
    path = tmp_path / "other.json"
    path.write_text(json.dumps(case))
    assert main([str(path), "--engine", "reference"]) == 1
    assert "digest_x of 45 steps" in capsys.readouterr().out


def test_a_table_is_no_schedule_and_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    """So that all that was recorded can be named at once."""
    assert main([str(GOLDEN / "engine_defaults.json"), str(CASES[0])]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "--   engine_defaults.json: a table, no schedule"


def test_a_crash_is_a_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A recorded schedule with equals in the queue, said to be of a version that could not have made it."""
    case = json.loads(gzip.decompress((GOLDEN / "schedule_priority_ties.json.gz").read_bytes()))
    path = tmp_path / "ties.json"
    path.write_text(json.dumps(case | {"vllm_version": "0.11.2"}))
    assert main([str(path)]) == 1
    assert "the engine of vLLM before 0.12.0 crashes" in capsys.readouterr().out


def test_what_is_no_recording_is_told_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2; a case that passes has status 0."""
    other = tmp_path / "defaults.json"
    other.write_text("{}")
    assert main([str(CASES[0])]) == 0
    with pytest.raises(SystemExit, match="2"):
        main([str(other)])
    assert f"{other} is no recorded schedule (KeyError: 'requests'); name cases" in capsys.readouterr().err
