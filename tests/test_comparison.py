"""Routers side by side, and engine arguments."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import sim
from sim.errors import ConfigError
from sim.specs.engine import ARGUMENTS
from sim.specs.presets import PRESETS

DEPLOYED: tuple[Any, ...] = ("Llama-3.1-8B", "h100-sxm", "traces/multi-turn.jsonl")
SJF = ("scheduling_policy", "sjf")


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
        ({"routers": ["llm_d", "random"], "replicas": 2, "vary": ["batching"]}, "are two comparisons; give one router"),
        ({"vary": ["batchin"]}, "'batchin' is no engine argument that could be varied. Did you mean batching"),
        ({"vary": ["max_num_seqs"]}, "no list of choices to vary; give some, as in max_num_seqs=VALUE,VALUE"),
        ({"vary": ["batching=continuous"]}, "nothing is varied"),
        ({"vary": ["max_num_seqs=["]}, "max_num_seqs: is not valid YAML"),
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
    assert list(texts[0]) == ["report.html", "routers.csv", "routers.png"]
    assert texts[0] == texts[1]
    assert json.loads((folder / "summary.json").read_text()) == json.loads(json.dumps(found.summary))
    table = pd.read_csv(folder / "routers.csv")
    assert table.to_dict("records") == [pytest.approx(row) for row in found.rows]
    (folder / "mine.txt").touch()
    with pytest.raises(ConfigError, match=r"already holds `mine.txt`, which is not a comparison of Servecast"):
        found.write(folder)


def test_without_routers_all_what_ifs_are_tried() -> None:
    """Each by itself, as the arguments declare them, and as it runs alone; the engine as given comes first."""
    given = sim.EngineConfig(max_model_len=8192, scheduling_policy="sjf")
    done: list[tuple[int, int]] = []
    found = sim.compare(
        *DEPLOYED, engine=given, limit=40, intervals=False, progress=lambda *at: done.append(at), slo=["ttft_p99=1s"]
    )
    asked = [(name, value) for name, one in ARGUMENTS.items() for value in one.what_ifs if (name, value) != SJF]
    assert [*found.results, *found.refused] == ["as given", *(f"{name}={value}" for name, value in asked)]
    assert {"batching=static", "kv_allocation=contiguous"} <= set(found.results)
    for name, value in asked:
        change: dict[str, Any] = {name: value}
        alone = sim.simulate(
            *DEPLOYED, engine=replace(given, **change), limit=40, intervals=False, slo=["ttft_p99=1s"]
        ).summary
        (summary,) = [run for run in found.summary["choices"] if run["choice"] == f"{name}={value}"]
        assert {**alone, "choice": summary["choice"], "wall_time_s": summary["wall_time_s"]} == summary
    assert done == sorted(done)
    assert done[-1][0] == done[-1][1] == 40 * len(found.results)
    assert [row["choice"] for row in found.rows] == list(found.results)
    assert found.rows[0]["KV %"] == found.results["as given"].summary["max_kv_cache_usage"] * 100


def test_arguments_are_varied_by_their_choices_or_by_values() -> None:
    """One at a time; what is given already is not run again, and what a change makes impossible says why."""
    varied = [
        "max-num-seqs=8,16",
        "scheduling_policy",
        "enable_prefix_caching",
        "tensor_parallel_size=3",
        "async_scheduling=null,false",
    ]
    found = sim.compare(
        *DEPLOYED,
        engine=sim.EngineConfig(max_num_seqs=8),
        vary=varied,
        router="random",
        replicas=2,
        limit=20,
        intervals=False,
    )
    policies = [f"scheduling_policy={name}" for name in ARGUMENTS["scheduling_policy"].choices if name != "fcfs"]
    switched = ["enable_prefix_caching=True", "enable_prefix_caching=False"]
    assert list(found.results) == ["as given", "max_num_seqs=16", *policies, *switched, "async_scheduling=False"]
    assert found.results["enable_prefix_caching=False"].summary["prefix_cache_hit_rate"] == 0
    assert "tensor_parallel_size=3 did not run: " in str(found)
    assert found.summary["refused"].keys() == {"tensor_parallel_size=3"}


def test_a_value_that_an_argument_never_has_is_refused_before_anything_runs() -> None:
    with pytest.raises(
        ConfigError, match=r"^batching must be one of continuous, static, got 'statik'. Did you mean static"
    ):
        sim.compare(*DEPLOYED, vary=["max_num_seqs=8", "batching=statik"], progress=lambda *_: pytest.fail("it ran"))


def test_presets_are_choices_too() -> None:
    """What a preset says takes the place of what is given, all else stays; one that is given already is not run again."""
    found = sim.compare(*DEPLOYED, engine=sim.preset("chat"), vary=["preset"], limit=5, intervals=False)
    assert next(iter(found.results)) == "as given"
    assert [*found.results, *found.refused][1:] == [f"preset={name}" for name in PRESETS if name != "chat"]
    assert found.results["preset=batch"].summary["engine"] == {**PRESETS["chat"], **PRESETS["batch"]}


def test_a_comparison_of_choices_is_written_under_their_name(tmp_path: Path) -> None:
    found = sim.compare(*DEPLOYED, vary=["batching"], limit=5, intervals=False)
    found.write(tmp_path / "found")
    assert {path.name for path in (tmp_path / "found").iterdir()} == {
        "summary.json",
        "report.html",
        "choices.csv",
        "choices.png",
    }
