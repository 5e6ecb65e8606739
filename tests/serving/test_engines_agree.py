"""The engine that leaps and the one that walks every request in every step are one engine."""

import pytest
from hypothesis import given, settings

from tests.engines import ENGINES
from tests.makers import replay
from tests.serving.test_metamorphic import facts
from tests.workloads import Workload, workloads


@pytest.mark.parametrize("engine", sorted(set(ENGINES) - {"reference"}))
@settings(max_examples=300)
@given(workload=workloads())
def test_engines_agree_on_every_step(engine: str, workload: Workload) -> None:
    """Schedules, preemptions, blocks, evictions, queues, times and records are equal; integer times leave no rounding."""
    one, other = (facts(replay(ENGINES[name], *workload)) for name in (engine, "reference"))
    assert len(one["steps"]) == len(other["steps"])
    for got, expected in zip(one["steps"], other["steps"], strict=True):
        assert got | {"i": 0} == expected | {"i": 0}
    assert repr(one | {"steps": 0}) == repr(other | {"steps": 0})
