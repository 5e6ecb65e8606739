"""One verdict a commit: Hypothesis draws the same examples each time and does not judge how busy the machine is."""

import gc
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.engines import ENGINES, Engine
from tests.properties import EFFORT, examples
from tests.slow import function, slow_tests

settings.register_profile("gate", examples(100), derandomize=EFFORT <= 1, deadline=None)
settings.load_profile("gate")

gc.set_threshold(2_000_000)
"""Objects until garbage is looked for: as often as Python does it by itself, it takes a quarter of the time in which tests
are collected, and a tenth of that in which they run."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slowest tests are begun first, so that no process is left with one at the end."""
    rank = {name: number for number, name in enumerate(slow_tests())}
    for item in items:
        if function(item) in rank:
            item.add_marker("slow")
    items.sort(key=lambda item: rank.get(function(item), len(rank)))


def pytest_collection_finish() -> None:
    """Garbage is looked for among what tests make, not among all that was imported."""
    gc.freeze()


@pytest.fixture(scope="session", params=sorted(ENGINES))
def engine(request: pytest.FixtureRequest) -> Engine:
    """Every behaviour is asked of every engine."""
    return ENGINES[request.param]


@pytest.fixture(scope="session", autouse=True)
def _a_cache_of_their_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Unfinished searches are neither found in the user's cache nor left there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _a_wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are compared as they are where nothing has to be broken; tests of widths set their own."""
    monkeypatch.setenv("COLUMNS", "500")
