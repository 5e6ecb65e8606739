"""A fleet from Python and from the command line: totals of all replicas, and what each of them did."""

from pathlib import Path
from typing import Any

import pytest

import sim
from sim.errors import ConfigError


def fleet(**arguments: Any) -> Any:
    return sim.simulate("Llama-3.1-8B", "h100-sxm", "traces/multi-turn.jsonl", limit=60, intervals=False, **arguments)


def test_replicas_add_up_to_the_fleet() -> None:
    found = fleet(replicas=3, router="round_robin")
    replicas = found.summary["replicas"]
    assert [replica["requests"] for replica in replicas] == [20, 20, 20]
    for key in ("completed", "total_output_tokens"):
        assert sum(replica[key] for replica in replicas) == found.summary[key]
    assert max(replica["max_kv_cache_usage"] for replica in replicas) == found.summary["max_kv_cache_usage"]
    busy = [replica["gpu_busy_fraction"] for replica in replicas]
    assert sum(busy) / 3 == pytest.approx(found.summary["gpu_busy_fraction"])
    assert found.requests["replica"].value_counts().to_dict() == {0: 20, 1: 20, 2: 20}
    counts = found.steps.groupby("replica").size()
    assert counts.sum() == found.summary["num_steps"]
    assert found.summary["gpu_hours"] == pytest.approx(3 * fleet().summary["gpu_hours"], rel=0.2)


def test_a_router_with_options_draws_from_the_seed() -> None:
    asked = {"policy": "llm_d", "prefix": 5}
    found = fleet(replicas=4, router=asked, seed=3)
    assert found.summary["fleet"] == {"replicas": 4, "router": asked}
    assert found.requests.equals(fleet(replicas=4, router="llm_d:prefix=5", seed=3).requests)
    served = [fleet(replicas=4, router="random", seed=seed).requests["replica"].tolist() for seed in (1, 1, 2)]
    assert served[0] == served[1] != served[2]
    assert "4 replicas of 1 x h100-sxm behind llm_d:prefix=5" in str(found)


def test_prefix_aware_routing_hits_more() -> None:
    rates = {name: fleet(replicas=4, router=name).summary["prefix_cache_hit_rate"] for name in ("random", "llm_d")}
    assert rates["llm_d"] > rates["random"] + 0.1


def test_one_replica_says_nothing_of_a_fleet(tmp_path: Path) -> None:
    found = fleet()
    assert not {"fleet", "replicas"} & set(found.summary)
    assert "replica" not in found.requests
    found.write(tmp_path / "one")
    fleet(replicas=2).write(tmp_path / "two")
    names = {folder: {path.name for path in (tmp_path / folder).iterdir()} for folder in ("one", "two")}
    assert names["one"] - names["two"] == {"timeline.png"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"replicas": 0}, "replicas must be at least 1, got 0"),
        ({"replicas": 2, "step_log": print}, "a step log has the steps of one engine, got 2 replicas"),
        ({"router": "least"}, "router must be one of .*, got 'least'. Did you mean least_loaded"),
    ],
)
def test_what_cannot_be_asked_for(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        fleet(**arguments)
