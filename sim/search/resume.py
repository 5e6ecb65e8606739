"""Where the trials of a search are remembered, so that one that was interrupted goes on where it was."""

import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sim.errors import ConfigError, SimError
from sim.search.evaluate import Scenario
from sim.search.store import DictMemory, Memory, Notify, TrialStore, study_id


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
