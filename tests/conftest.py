"""One verdict a commit: Hypothesis draws the same examples each time and does not judge how busy the machine is."""

import pytest
from hypothesis import settings

from tests.engines import ENGINES, Engine

settings.register_profile("gate", derandomize=True, deadline=None)
settings.load_profile("gate")


@pytest.fixture(scope="session", params=sorted(ENGINES))
def engine(request: pytest.FixtureRequest) -> Engine:
    """Every behaviour is asked of every engine."""
    return ENGINES[request.param]
