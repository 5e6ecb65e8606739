"""Keeps the outcomes of trials in SQLite as they finish, so that an interrupted search can be resumed."""

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
from sim.specs.hardware import load_gpu
from sim.version import __version__
from sim.workload.load import trace_sha256

_SCHEMA = """
    CREATE TABLE IF NOT EXISTS trials (study TEXT, task TEXT, outcome TEXT, PRIMARY KEY (study, task)) WITHOUT ROWID
"""


PATIENCE_S = 30.0  # how long a locked file is waited for
UNSAID_S = 1.0  # a lock this short is not reported: another search writes for milliseconds
RETRY_S = 0.1

Notify = Callable[[str], None]
Result = TypeVar("Result")


def ignore(_: str) -> None:
    """A Notify that drops what it is told."""


class Memory(Protocol):
    """Outcomes by the keys of their tasks."""

    def get(self, key: str) -> Outcome | None: ...

    def put(self, key: str, outcome: Outcome) -> None: ...


class DictMemory(dict[str, Outcome]):
    """Outcomes in the memory of this process."""

    def put(self, key: str, outcome: Outcome) -> None:
        self[key] = outcome


class TrialStore:
    """Outcomes in a SQLite file that many searches may share; each sees its own study. An outcome is on disk once it is put.

    If another process has locked the file, `notify` is told. Raises ConfigError if it is still locked after PATIENCE_S
    seconds, or is not such a store.
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
        """Create the table, and read the rows of this study.

        The first writes do not wait for the disk, since no signal can interrupt that wait, and a new file has nothing to lose.
        """
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
        """Call `act` again while the file is locked, up to PATIENCE_S. SQLite's own waiting could not be ended by Ctrl-C."""
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
    """16 hexadecimal digits, equal in any process for searches whose equal tasks have equal outcomes."""
    facts = (
        __version__,
        scenario.model,
        scenario.gpu,
        scenario.target.slos,
        scenario.base,
        scenario.vllm_version,
        scenario.router,
        scenario.kv_store,
        scenario.kv_pull,
        scenario.clients,
        scenario.step_times._replace(source=None),
        *_of_fleet(scenario),
        trace_sha256(scenario.trace),
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _of_fleet(scenario: Scenario) -> Iterator[object]:
    """The fleet file, and what is known of the GPUs that it names."""
    if scenario.fleet is not None:
        yield scenario.fleet.to_json()
        yield [pool.gpu and load_gpu(pool.gpu) for pool in scenario.fleet.pools]


def to_json(outcome: Outcome) -> str:
    limits = outcome.limits and outcome.limits._asdict()
    return json.dumps({"reason": outcome.reason, "metrics": outcome.metrics, "limits": limits})


def from_json(text: str) -> Outcome:
    row = json.loads(text)
    return Outcome(row["reason"], row["metrics"], row["limits"] and Limits(**row["limits"]))


def sealed(study: str, task: str, outcome: str) -> str:
    """The outcome behind a digest of its row, so that an outcome changed by hand is noticed, and not taken for a simulated one."""
    return f"{_digest(study, task, outcome)} {outcome}"


def unsealed(study: str, task: object, row: object) -> str:
    """The outcome in a row. Raises ValueError if the row was changed since it was written."""
    digest, _, outcome = str(row).partition(" ")
    if digest != _digest(study, str(task), outcome):
        raise ValueError(f"the trial {str(task)[:80]} is not as it was written")
    return outcome


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode(errors="replace")).hexdigest()[:16]


@contextmanager
def remembered(shared: Scenario, store: str | Path | None, notify: Notify, *, resume: bool) -> Iterator[Memory]:
    """The memory of a search: the file `store`, which is kept; with `resume` a cache file, deleted at the end; or this process."""
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
    """The cache file of this search. None if the cache cannot be written: the search then runs, but cannot be resumed."""
    try:
        return TrialStore(cache_folder() / f"{study_id(shared)}.sqlite", study_id(shared), notify)
    except ConfigError:
        return None


def cache_folder() -> Path:
    """The folder for unfinished searches, by the platform's custom."""
    if given := os.environ.get("XDG_CACHE_HOME"):
        return Path(given, "servecast")
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home()), "servecast")
    return Path.home() / (Path("Library", "Caches") if sys.platform == "darwin" else Path(".cache")) / "servecast"
