"""The highest rate of a fleet file's pools, as they are or as a policy scales them, and the size of one pool for a rate."""

import json
import shlex
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import sim
from sim.errors import ConfigError
from sim.fleet import deploy_fleet
from sim.report.search import capacity_text
from sim.search.answer import Capacity
from sim.search.candidate_json import serve_lines
from sim.search.highest_rate import PRECISION
from sim.search.rate_probe import LEAST_CHANGING_S
from sim.specs.engine import EngineConfig
from sim.specs.speculative_config import SpeculativeConfig
from sim.steptime.linear import LinearStepTime
from tests.search.makers import gpu, model
from tests.search.test_capacity import ENGINE, SERVICE_S, STEPS, steady_trace

EACH = 1 / SERVICE_S  # requests/s of a replica that serves one at a time
TWO_POOLS = {"router": "round_robin", "pools": [{"name": "few"}, {"name": "many", "replicas": 2}]}
SLOW_STEPS = LinearStepTime(0.1, 0.0, 0.0)  # a request takes a second, so that few fill the minutes of a replay
ROLES = {
    "router": "round_robin",
    "pools": [{"name": "prompts", "role": "prefill"}, {"name": "answers", "role": "decode", "replicas": 2}],
}
SCALED = {
    "autoscale": {"policy": "schedule", "times": [[0, 2]], "max": 2},
    "start_up": 0,
    "pools": [{"name": "web"}],
}


FACTS: dict[str, Any] = {"slo": ["ttft_p99=50ms"], "engine": ENGINE, "step_time_model": STEPS, "intervals": False}


def answer(fleet: dict[str, Any] | None, **changes: Any) -> dict[str, Any]:
    return sim.capacity(model(), gpu(), steady_trace(), fleet=fleet, **(FACTS | changes)).summary


def slowly(fleet: dict[str, Any], **changes: Any) -> Capacity:
    """The same where each step takes ten times as long."""
    facts = FACTS | {"slo": ["ttft_p99=500ms"], "step_time_model": SLOW_STEPS}
    return sim.capacity(model(), gpu(), steady_trace(40), fleet=fleet, **(facts | changes))


def test_pools_serve_what_all_their_replicas_do() -> None:
    """Three servers in turn take three times what one does, and each pool its share."""
    found = answer(TWO_POOLS)
    assert found["limited_by"] == "ttft_p99"
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


def test_where_no_limit_breaks_a_growing_backlog_is_the_limit() -> None:
    """Nobody minds to wait ten minutes, but the queue would have no end."""
    assert answer(TWO_POOLS, slo=["ttft_p99=600s"])["limited_by"] == "a growing backlog"


def test_one_pool_is_as_many_replicas() -> None:
    """A file that says no more than --replicas has the answer of --replicas."""
    in_a_file = answer({"pools": [{"replicas": 2}]})
    asked = answer(None, replicas=2)
    assert in_a_file["max_request_rate"] == asked["max_request_rate"]
    assert in_a_file["curve"] == asked["curve"]


def test_replicas_that_share_kv_take_more() -> None:
    """Of two that take turns each gets one of two prompts that begin alike, the other one twenty-one requests later: with KV between them, asked for
    beside --replicas or beside a file, most of it need not be computed."""
    trace = pd.DataFrame({"arrival_s": np.arange(42.0), "prompt_tokens": 1500, "output_tokens": 10})
    trace["hash_block_size"] = 300
    trace["hash_ids"] = [[*range(row % 21 * 4, row % 21 * 4 + 4), 1000 + row] for row in range(42)]
    facts: dict[str, Any] = FACTS | {
        "slo": ["ttft_p99=2s"],
        "engine": EngineConfig(max_model_len=2048, num_gpu_blocks_override=1000),
        "router": "round_robin",
        "step_time_model": LinearStepTime(base_s=0.05, per_token_s=4e-4, per_context_token_s=0.0),
    }
    plain = sim.capacity(model(), gpu(), trace, replicas=2, **facts).summary
    ways: list[dict[str, Any]] = [{"kv_store": "capacity_gib=64"}, {"kv_pull": "via=gpu"}]
    for shared in ways:
        asked = sim.capacity(model(), gpu(), trace, replicas=2, **facts, **shared).summary
        beside = sim.capacity(model(), gpu(), trace, fleet={"pools": [{"replicas": 2}]}, **facts, **shared).summary
        assert asked["max_request_rate"] > 1.1 * plain["max_request_rate"]
        assert asked["curve"] == beside["curve"]
        assert shared.items() <= asked.items()
        assert shared.items() <= beside["fleet"].items()


def test_a_pool_is_sized_beside_the_others() -> None:
    """35 requests/s take four servers of ten: three beside the one of the other pool."""
    found = answer(TWO_POOLS, rate=35.0, pool="many")["sizing"]
    assert (found["pool"], found["replicas"], found["num_gpus"], found["multiplied_replicas"]) == ("many", 3, 4, None)
    assert found["metrics"]["p99_ttft_ms"] <= 50
    assert answer({"pools": [{}]}, rate=35.0)["sizing"]["replicas"] == 4


def test_pools_with_roles_take_what_the_slower_of_them_does() -> None:
    """A prompt takes its pool one step of ten, an answer the other all ten: two answer two a second, and 3.5 take four."""
    found = slowly(ROLES, rate=3.5, pool="answers").summary
    assert found["max_request_rate"] == pytest.approx(2.0, rel=5 * PRECISION)
    assert [(pool["pool"], pool["role"], pool["replicas"]) for pool in found["pools"]] == [
        ("prompts", "prefill", 1),
        ("answers", "decode", 2),
    ]
    prompts, answers = found["metrics"]["pools"]
    assert prompts["arrived"] == answers["arrived"] == found["metrics"]["completed"]
    assert prompts["gpu_busy_fraction"] == pytest.approx(0.2, abs=0.02)
    assert answers["gpu_busy_fraction"] > 0.9
    assert (found["sizing"]["pool"], found["sizing"]["replicas"], found["sizing"]["num_gpus"]) == ("answers", 4, 5)


def test_a_policy_is_asked_for_what_it_makes_of_the_pool() -> None:
    """One replica that is two from the start takes two a second, and its GPU hours are those of two."""
    found = slowly(SCALED).summary
    metrics = found["metrics"]
    assert found["max_request_rate"] == pytest.approx(2.0, rel=2 * PRECISION)
    assert (found["replicas"], metrics["mean_replicas"], found["usd_per_hour"]) == (1, 2.0, None)
    assert metrics["duration"] > LEAST_CHANGING_S * 0.99
    assert metrics["gpu_hours"] == pytest.approx(2 * metrics["duration"] / 3600)


def test_a_policy_scales_servers_of_several_engines() -> None:
    """Two servers of two engines take four times what an engine does, on four GPUs."""
    found = slowly(SCALED, engine=replace(ENGINE, data_parallel_size=2)).summary
    assert found["max_request_rate"] == pytest.approx(4 * EACH / 10, rel=0.15)
    metrics = found["metrics"]
    assert metrics["mean_replicas"] == pytest.approx(2, rel=0.01)
    assert metrics["gpu_hours"] == pytest.approx(4 * metrics["duration"] / 3600, rel=0.01)


@pytest.mark.parametrize("fleet", [ROLES, SCALED], ids=["roles", "autoscale"])
def test_an_answer_is_what_simulate_finds(fleet: dict[str, Any]) -> None:
    """The fleet of the answer under the load that checks it has the figures that are printed for it."""
    found = slowly(fleet)
    assert found.load is not None
    facts: dict[str, Any] = {"engine": ENGINE, "step_time_model": SLOW_STEPS, "intervals": False}
    again = sim.simulate(model(), gpu(), found.load.trace, fleet=found.summary["fleet"], **facts).summary
    for forecast in (found.summary["verify"]["metrics"], found.summary["metrics"]):
        for key in ("p99_ttft_ms", "p99_e2el_ms", "output_throughput", "gpu_hours", "cost_usd"):
            assert again[key] == pytest.approx(forecast[key]), key
        assert [pool["completed"] for pool in again["pools"]] == [pool["completed"] for pool in forecast["pools"]]


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
        (SCALED, {"rate": 3.0, "pool": "web"}, "on that the fleet's autoscale decides"),
        (SCALED, {"replicas": 2}, "the pools of --fleet say how many replicas there are, got --replicas 2 too"),
        (ROLES, {"rate": 3.0}, "--rate sizes one pool; name it with --pool: prompts, answers."),
        (ROLES | {"pools": ROLES["pools"][:1]}, {}, "but none has the role decode; add one."),
    ],
)
def test_bad_questions_are_refused(fleet: Any, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        answer(fleet, **changes)
    assert sentence in str(refused.value)


def test_lines_of_pools_that_hand_over_have_the_connector() -> None:
    """Both sides that of llm-d, with what was asked for of it; replicas that serve requests whole have none."""
    pools = [*ROLES["pools"], {"name": "whole"}]
    asked = {"kv_lease_duration": 60.0, "kv_load_failure_policy": "recompute"}
    fleet = deploy_fleet("Llama-3.1-8B", "h100-sxm", EngineConfig(), ROLES | {"pools": pools, "transfer": asked})
    prompts, answers, whole = map(shlex.split, serve_lines(fleet))
    for line in (prompts, answers):
        assert json.loads(line[line.index("--kv-transfer-config") + 1]) == {
            "kv_connector": "NixlConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"kv_lease_duration": 60.0},
        }
    assert "--kv-transfer-config" not in whole


def test_pools_that_hand_over_are_sized_by_steps_with_drafts() -> None:
    """Ten tokens are four steps of a decode replica: one with the prompt's last token, and three of four tokens; a tenth of a second each."""
    drafting = replace(ENGINE, speculative_config=SpeculativeConfig("ngram", None, 3))
    found = slowly(ROLES, engine=drafting, acceptance=4.0).summary
    assert found["max_request_rate"] == pytest.approx(2 / 0.4, rel=0.15)
