"""Trials outlive the search that made them."""

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from sim.cli import run
from sim.errors import ConfigError
from sim.metrics.bottlenecks import Limits
from sim.search.evaluate import Outcome
from sim.search.store import TrialStore, from_json, sealed, study_id, to_json, unsealed
from sim.workload.writers import write_trace
from tests.search.makers import make_scenario, make_trace

MARK = 123456.0


def test_an_outcome_survives_json() -> None:
    """Bit by bit, limits and reasons included."""
    outcome = Outcome(None, {"p99_ttft_ms": 0.1 + 0.2, "completed": 3}, Limits({"compute": 1.0}, {"kv_space": 0.0}))
    assert from_json(to_json(outcome)) == outcome
    assert from_json(to_json(Outcome("too short", {}))) == Outcome("too short", {})


def test_searches_of_other_traces_do_not_mix(tmp_path: Path) -> None:
    """One file serves several; each sees its own."""
    first, second = (study_id(make_scenario(make_trace(seed=seed))) for seed in (0, 1))
    assert first != second
    store = TrialStore(tmp_path / "trials.sqlite", first)
    store.put("task", Outcome("no", {}))
    store.close()
    for study, outcome in ((first, Outcome("no", {})), (second, None)):
        with closing(TrialStore(tmp_path / "trials.sqlite", study)) as store:
            assert store.get("task") == outcome


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no database, but long enough to be read as one" * 100)
    with pytest.raises(ConfigError, match="cannot be used for trials"):
        TrialStore(path, "study")


@pytest.fixture
def held(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A store that somebody else has locked, until `rollback`."""
    TrialStore(tmp_path / "trials.sqlite", "study").close()
    with closing(sqlite3.connect(tmp_path / "trials.sqlite", isolation_level=None)) as database:
        database.execute("BEGIN EXCLUSIVE")
        yield database


def test_a_locked_store_is_waited_for_and_says_so(tmp_path: Path, held: sqlite3.Connection) -> None:
    """Once, naming the file; when it is let go the search goes on."""
    said: list[str] = []

    def let_go(sentence: str) -> None:
        said.append(sentence)
        held.rollback()

    with closing(TrialStore(tmp_path / "trials.sqlite", "study", let_go)) as store:
        store.put("task", Outcome("no", {}))
    assert said == [f"{tmp_path / 'trials.sqlite'} is locked; waiting up to 30 s for the process that holds it."]
    assert "task" in rows([tmp_path / "trials.sqlite"])


@pytest.mark.usefixtures("held")
def test_a_store_that_stays_locked_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a sentence, as where it cannot be written for another reason."""
    monkeypatch.setattr("sim.search.store.PATIENCE_S", 0.2)
    store = TrialStore(tmp_path / "trials.sqlite", "study")
    with closing(store), pytest.raises(ConfigError, match="database is locked"):
        store.put("task", Outcome("no", {}))


def rows(stores: list[Path]) -> dict[str, str]:
    """What stands in the store as another process sees it: nothing while it is still being made."""
    for store in stores:
        with closing(sqlite3.connect(store)) as database, suppress(sqlite3.OperationalError):
            return dict(database.execute("SELECT task, outcome FROM trials").fetchall())
    return {}


def test_a_store_is_a_regular_file(tmp_path: Path) -> None:
    """A pipe or a device is no place for trials, and nothing is left beside it."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="cannot be used for trials: it is no regular file"):
        TrialStore(tmp_path / "pipe", "study")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.parametrize(
    "edit",
    [
        "outcome = 'garbage'",
        "outcome = ''",
        "outcome = 7",
        "outcome = replace(outcome, '3', '4')",
        "task = 'another'",
    ],
)
def test_a_row_edited_by_hand_is_refused(tmp_path: Path, edit: str) -> None:
    """A figure that no replay gave is no trial; the sentence names the file."""
    with closing(TrialStore(tmp_path / "trials.sqlite", "study")) as store:
        store.put("task", Outcome(None, {"completed": 3}))
    with closing(sqlite3.connect(tmp_path / "trials.sqlite")) as database, database:
        database.execute(f"UPDATE trials SET {edit}")  # noqa: S608
    with pytest.raises(ConfigError, match=r"trials\.sqlite cannot be used for trials: .* is not as it was written"):
        TrialStore(tmp_path / "trials.sqlite", "study")


@pytest.mark.parametrize("store", [["--store", "cache/trials.sqlite"], []], ids=["named", "cached"])
def test_a_killed_search_goes_on_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], store: list[str]
) -> None:
    """`kill -9` in the middle; marks put into what was stored are found in the answer, so it was not computed again.

    A store that was named is kept; that of the user's cache is deleted when the search is over.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    trace = tmp_path / "trace.csv"
    write_trace(make_trace(600), trace)
    (tmp_path / "steps.yaml").write_text("{kind: linear, base_s: 0.01, per_token_s: 1.0e-4, per_context_token_s: 0.0}")
    (tmp_path / "space.yaml").write_text("knobs: {max_num_seqs: [8, 16, 32, 64], max_num_batched_tokens: [256, 1024]}")
    flags = [
        "--gpu",
        "h100-sxm",
        "--objective",
        "latency",
        "--max-model-len",
        "2048",
        "--workers",
        "1",
        "--no-intervals",
        "--json",
    ]
    places: list[str | Path] = [
        "--trace",
        trace,
        "--step-time-model",
        tmp_path / "steps.yaml",
        "--space",
        tmp_path / "space.yaml",
    ]
    command = ["optimize", "Llama-3.1-8B", *flags, *map(str, places)]

    def search(*more: str) -> dict[str, Any]:
        assert run([*command, *more]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    def stores() -> list[Path]:
        return list(tmp_path.glob("cache/**/*.sqlite"))

    process = [sys.executable, "-c", "from sim.cli import main; main()"]
    first = subprocess.Popen([*process, *command, *store], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(rows(stores())) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    first.kill()
    first.wait()
    stored = rows(stores())
    assert 2 <= len(stored) < 8
    with closing(sqlite3.connect(stores()[0])) as database, database:
        for study, task, outcome in database.execute("SELECT study, task, outcome FROM trials").fetchall():
            marked = json.loads(unsealed(study, task, outcome))
            marked["metrics"]["std_e2el_ms"] = MARK
            row = (sealed(study, task, json.dumps(marked)), task)
            database.execute("UPDATE trials SET outcome = ? WHERE task = ?", row)
    resumed = search(*store)
    marks = [row["metrics"]["std_e2el_ms"] == MARK for row in resumed["candidates"]]
    assert sum(marks) == len(stored)
    assert bool(stores()) == bool(store)
    fresh = search()
    assert [row["score"] for row in fresh["candidates"]] == [row["score"] for row in resumed["candidates"]]
    assert fresh["best"] == resumed["best"]
