"""Outcomes of trials in SQLite as they finish, so that a search that was interrupted goes on where it was."""

import hashlib
import json
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from sim.errors import ConfigError, SimError
from sim.inputs import is_there
from sim.metrics.bottlenecks import Limits
from sim.search.evaluate import Outcome, Scenario
from sim.version import __version__

_SCHEMA = """
    CREATE TABLE IF NOT EXISTS trials (study TEXT, task TEXT, outcome TEXT, PRIMARY KEY (study, task)) WITHOUT ROWID
"""


PATIENCE_S = 30.0  # with whoever else holds the file
UNSAID_S = 1.0  # another search writes for milliseconds: nothing to speak of
RETRY_S = 0.1

Notify = Callable[[str], None]
Result = TypeVar("Result")


def ignore(_: str) -> None:
    """Nobody wants to know."""


class Memory(Protocol):
    """Outcomes of tasks by their keys."""

    def get(self, key: str) -> Outcome | None: ...

    def put(self, key: str, outcome: Outcome) -> None: ...


class DictMemory(dict[str, Outcome]):
    """Lasts as long as the process."""

    def put(self, key: str, outcome: Outcome) -> None:
        self[key] = outcome


class TrialStore:
    """Outcomes in a SQLite file, of any number of searches; one search sees its own. Each is on disk once put.

    `notify` is told where another process holds the file; after PATIENCE_S of that, as for any file that is no store,
    ConfigError is raised.
    """

    def __init__(self, path: Path, study: str, notify: Notify = ignore) -> None:
        self._path, self._study, self._notify = path, study, notify
        if is_there(path) and not is_there(path, Path.is_file):  # SQLite would write beside a device
            raise ConfigError(f"--store {path} cannot be used for trials: it is no regular file; name another file.")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with ExitStack() as on_failure:
                self._database = on_failure.enter_context(closing(sqlite3.connect(path, timeout=RETRY_S)))
                rows = self._patiently(self._open)
                self._known = {task: from_json(unsealed(study, task, outcome)) for task, outcome in rows}
                on_failure.pop_all()
        except (OSError, sqlite3.Error, ValueError) as error:
            raise ConfigError(f"--store {path} cannot be used for trials: {error}; name another file.") from None

    def _open(self) -> list[tuple[str, str]]:
        """Without waiting for the disk, which no signal ends: a new file has nothing to lose, and rows outlive the process."""
        self._database.execute("PRAGMA synchronous=OFF")
        self._database.execute("PRAGMA journal_mode=WAL")
        with self._database as database:
            database.execute(_SCHEMA)
        self._database.execute("PRAGMA synchronous=NORMAL")
        return self._database.execute("SELECT task, outcome FROM trials WHERE study = ?", (self._study,)).fetchall()

    def get(self, key: str) -> Outcome | None:
        return self._known.get(key)

    def put(self, key: str, outcome: Outcome) -> None:
        self._known[key] = outcome
        row = (self._study, key, sealed(self._study, key, to_json(outcome)))
        try:
            self._patiently(lambda: self._write(row))
        except sqlite3.Error as error:
            raise ConfigError(f"--store {self._path} cannot be written: {error}; name another file.") from None

    def _write(self, row: tuple[str, str, str]) -> None:
        with self._database:
            self._database.execute("INSERT OR REPLACE INTO trials VALUES (?, ?, ?)", row)

    def _patiently(self, act: Callable[[], Result]) -> Result:
        """`act`, again and again while the file is locked. SQLite's own patience would not hear Ctrl-C."""
        begun_s, is_said = time.monotonic(), False
        while True:
            try:
                return act()
            except sqlite3.OperationalError as error:
                waited_s = time.monotonic() - begun_s
                if (
                    error.sqlite_errorcode & 0xFF not in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
                    or waited_s > PATIENCE_S
                ):
                    raise
                if waited_s > UNSAID_S and not is_said:
                    is_said = True
                    self._notify(
                        f"{self._path} is locked; waiting up to {PATIENCE_S:.0f} s for the process that holds it."
                    )
            time.sleep(RETRY_S)

    def close(self) -> None:
        self._database.close()

    def remove(self) -> None:
        """Close and delete the file: the search is over."""
        self.close()
        for suffix in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)


def study_id(scenario: Scenario) -> str:
    """Equal for searches whose tasks have equal outcomes, in any process; a few hexadecimal digits."""
    trace, digest = scenario.trace, hashlib.sha256()
    facts = (
        __version__,
        scenario.model,
        scenario.gpu,
        scenario.target.slos,
        scenario.base,
        scenario.vllm_version,
        scenario.router,
        scenario.clients,
        scenario.step_times._replace(source=None),
        trace.priority is None or trace.priority.tolist(),
        trace.session_id,
        trace.segments,
    )
    digest.update(repr(facts).encode())
    for column in (trace.arrival_s, trace.prompt_tokens, trace.output_tokens, trace.think_time_s, trace.stage):
        digest.update(b"" if column is None else column.tobytes())
    return digest.hexdigest()[:16]


def to_json(outcome: Outcome) -> str:
    limits = outcome.limits and outcome.limits._asdict()
    return json.dumps({"reason": outcome.reason, "metrics": outcome.metrics, "limits": limits})


def from_json(text: str) -> Outcome:
    row = json.loads(text)
    return Outcome(row["reason"], row["metrics"], row["limits"] and Limits(**row["limits"]))


def sealed(study: str, task: str, outcome: str) -> str:
    """The outcome behind a digest of its row: whoever changed one by hand would make the search's figures his own."""
    return f"{_digest(study, task, outcome)} {outcome}"


def unsealed(study: str, task: object, row: object) -> str:
    """The outcome in a row. Raises ValueError where the row is not as it was written."""
    digest, _, outcome = str(row).partition(" ")
    if digest != _digest(study, str(task), outcome):
        raise ValueError(f"the trial {str(task)[:80]} is not as it was written")
    return outcome


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode(errors="replace")).hexdigest()[:16]


@contextmanager
def remembered(shared: Scenario, store: str | Path | None, notify: Notify, *, resume: bool) -> Iterator[Memory]:
    """Where trials are remembered; a file of the cache is deleted when the search is over, one that was named is kept."""
    if store is not None:
        with closing(TrialStore(Path(store), study_id(shared), notify)) as kept:
            yield kept
    elif resume and (cached := _cached(shared, notify)) is not None:
        with closing(cached):
            try:
                yield cached
            except SimError:
                cached.remove()
                raise
            cached.remove()
    else:
        yield DictMemory()


def _cached(shared: Scenario, notify: Notify) -> TrialStore | None:
    """None where the cache cannot be written: the search then cannot be resumed, and need not fail for it."""
    try:
        return TrialStore(cache_folder() / f"{study_id(shared)}.sqlite", study_id(shared), notify)
    except ConfigError:
        return None


def cache_folder() -> Path:
    """Where unfinished searches are kept, by the platform's custom."""
    if given := os.environ.get("XDG_CACHE_HOME"):
        return Path(given, "servecast")
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home()), "servecast")
    return Path.home() / (Path("Library", "Caches") if sys.platform == "darwin" else Path(".cache")) / "servecast"
