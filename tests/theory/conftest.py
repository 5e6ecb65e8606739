"""Theory is asked of the engine that ships: the naive one does the same, as tests/engine/test_engines_agree.py sees to."""

import pytest

from tests.engines import ENGINES, Engine


@pytest.fixture(scope="session")
def engine() -> Engine:
    return ENGINES["fast"]
