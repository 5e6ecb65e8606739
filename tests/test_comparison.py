"""Routers side by side."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import sim
from sim.errors import ConfigError

DEPLOYED: tuple[Any, ...] = ("Llama-3.1-8B", "h100-sxm", "traces/multi-turn.jsonl")


def test_each_router_has_the_run_that_it_has_alone() -> None:
    """Its summary, and a row of the table; progress goes once through the requests of all."""
    done: list[tuple[int, int]] = []
    routers: tuple[Any, ...] = ("round_robin", {"policy": "llm_d", "prefix": 5})
    found = sim.compare(
        *DEPLOYED,
        routers=routers,
        replicas=3,
        limit=60,
        intervals=False,
        slo=["ttft_p99=1s"],
        progress=lambda *at: done.append(at),
    )
    assert list(found.results) == ["round_robin", "llm_d:prefix=5"]
    for router, summary in zip(routers, found.summary["routers"], strict=True):
        alone = sim.simulate(
            *DEPLOYED, router=router, replicas=3, limit=60, intervals=False, slo=["ttft_p99=1s"]
        ).summary
        assert {**alone, "router": summary["router"], "wall_time_s": summary["wall_time_s"]} == summary
    assert done == sorted(done)
    assert done[-1] == (120, 120)
    first, second = found.rows
    assert second["hit %"] == found.results["llm_d:prefix=5"].summary["prefix_cache_hit_rate"] * 100 > first["hit %"]
    assert first["within limits %"] == 100
    assert first["most / mean"] >= 1
    assert "3 replicas of 1 x h100-sxm behind each router" in str(found)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"routers": ["llm_d"], "replicas": 2}, "two different routers or more, got llm_d"),
        ({"routers": [], "replicas": 2}, "two different routers or more, got none"),
        ({"routers": ["llm_d", {"policy": "llm_d"}], "replicas": 2}, "two different routers or more, got llm_d, llm_d"),
        ({"routers": ["llm_d", "random"]}, "a single replica needs no router; give --replicas or --fleet"),
        ({"routers": ["llm_d", "lmd"], "replicas": 2}, "Did you mean llm_d"),
    ],
)
def test_what_cannot_be_compared(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        sim.compare(*DEPLOYED, limit=3, intervals=False, **arguments)


def test_a_fleet_that_grows_has_a_router() -> None:
    found = sim.compare(*DEPLOYED, routers=["random", "llm_d"], fleet={"autoscale": "hpa"}, limit=5, intervals=False)
    assert [result.summary["completed"] for result in found.results.values()] == [5, 5]


def test_a_comparison_is_written_whole(tmp_path: Path) -> None:
    """The same bytes each time, in place of an earlier one; nothing else is replaced."""
    folder = tmp_path / "found"
    texts = []
    for _ in range(2):
        found = sim.compare(*DEPLOYED, routers=["random", "llm_d"], replicas=2, limit=20, intervals=False)
        found.write(folder)
        texts.append({path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix != ".json"})
    assert list(texts[0]) == ["routers.csv", "routers.png"]
    assert texts[0] == texts[1]
    assert json.loads((folder / "summary.json").read_text()) == json.loads(json.dumps(found.summary))
    table = pd.read_csv(folder / "routers.csv")
    assert table.to_dict("records") == [pytest.approx(row) for row in found.rows]
    (folder / "mine.txt").touch()
    with pytest.raises(ConfigError, match=r"already holds `mine.txt`, which is not a comparison of Servecast"):
        found.write(folder)
