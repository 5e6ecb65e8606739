"""Every behaviour is asked of every engine."""

import pytest

from tests.engines import ENGINES, Engine


@pytest.fixture(scope="session", params=sorted(ENGINES))
def engine(request: pytest.FixtureRequest) -> Engine:
    return ENGINES[request.param]
