"""The highest rate of a fleet file's pools, as they are or as a policy scales them, and the size of one pool for a rate."""

from typing import Any

import pytest

import sim
from sim.errors import ConfigError
from sim.report.search import capacity_text
from sim.search.highest_rate import PRECISION
from tests.search.makers import gpu, model
from tests.search.test_capacity import ENGINE, SERVICE_S, STEPS, steady_trace

EACH = 1 / SERVICE_S  # requests/s of a replica that serves one at a time
TWO_POOLS = {"router": "round_robin", "pools": [{"name": "few"}, {"name": "many", "replicas": 2}]}


def answer(fleet: dict[str, Any] | None, **changes: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"slo": ["ttft_p99=50ms"], "engine": ENGINE, "step_time_model": STEPS, "intervals": False}
    return sim.capacity(model(), gpu(), steady_trace(), fleet=fleet, **(facts | changes)).summary


def test_pools_serve_what_all_their_replicas_do() -> None:
    """Three servers in turn take three times what one does, and each pool its share."""
    found = answer(TWO_POOLS)
    assert found["max_request_rate"] == pytest.approx(3 * EACH, rel=PRECISION)
    assert [(pool["pool"], pool["role"], pool["replicas"]) for pool in found["pools"]] == [
        ("few", "both", 1),
        ("many", "both", 2),
    ]
    few, many = (pool["arrived"] for pool in found["metrics"]["pools"])
    assert many == pytest.approx(2 * few, abs=2)
    assert (found["replicas"], found["num_gpus"]) == (3, 3)
    assert found["usd_per_hour"] == 3 * (gpu().price_usd_per_hour or 0)
    assert found["fleet"] == TWO_POOLS
    assert found["verify"]["notes"] == ["send it to the router before the pools"]
    text = capacity_text(found)
    assert text.startswith("1 replica of 1 x h100-sxm and 2 replicas of 1 x h100-sxm behind round_robin takes ")
    assert "# many, 2 times" in text


def test_one_pool_is_as_many_replicas() -> None:
    """A file that says no more than --replicas has the answer of --replicas."""
    in_a_file = answer({"pools": [{"replicas": 2}]})
    asked = answer(None, replicas=2)
    assert in_a_file["max_request_rate"] == asked["max_request_rate"]
    assert in_a_file["curve"] == asked["curve"]


def test_a_pool_is_sized_beside_the_others() -> None:
    """35 requests/s take four servers of ten: three beside the one of the other pool."""
    found = answer(TWO_POOLS, rate=35.0, pool="many")["sizing"]
    assert (found["pool"], found["replicas"], found["num_gpus"], found["multiplied_replicas"]) == ("many", 3, 4, None)
    assert found["metrics"]["p99_ttft_ms"] <= 50
    assert answer({"pools": [{}]}, rate=35.0)["sizing"]["replicas"] == 4


@pytest.mark.parametrize(
    ("fleet", "changes", "sentence"),
    [
        (TWO_POOLS, {"replicas": 2}, "the pools of --fleet say how many replicas there are, got --replicas 2 too"),
        (TWO_POOLS, {"router": "random"}, "fleet has a router, 'round_robin', and 'random' is asked for"),
        (TWO_POOLS, {"rate": 3.0}, "--rate sizes one pool; name it with --pool: few, many."),
        (TWO_POOLS, {"rate": 3.0, "pool": "man"}, "--pool man is no pool: the fleet has few, many. Did you mean many?"),
        (TWO_POOLS, {"pool": "many"}, "--pool many says which pool --rate sizes; give a rate"),
        ({"autoscale": "hpa"}, {"rate": 3.0}, "on that the fleet's autoscale decides"),
        (None, {"rate": 3.0, "pool": "many"}, "--pool many is no pool: there are pools with --fleet only."),
    ],
)
def test_bad_questions_are_refused(fleet: Any, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        answer(fleet, **changes)
    assert sentence in str(refused.value)
