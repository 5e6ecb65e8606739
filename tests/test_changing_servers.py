"""Servers of several data-parallel engines that come and go, from Python: what a fault takes with it, what is counted, and searches over them."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import sim
from sim.cluster.autoscaling.table import autoscaler_options
from sim.search.entry import optimize
from tests.test_ranks import DENSE, MOE, served

HPA: dict[str, Any] = {"policy": "hpa", "metric": "in_flight", "target": 40, "max": 3, "scale_down_window_s": 10}
FAULT: dict[str, Any] = {"faults": [{"at_s": 10, "replica": 1, "for_s": 3}], "start_up": 2}
ADDRESSES = {"a server": {}, "a rank": {"data_parallel_external_lb": True}}
NODES = {"data_parallel_size": 4, "data_parallel_hybrid_lb": True, "data_parallel_size_local": 2}


def burst(num_requests: int = 400, rate: float = 20.0) -> pd.DataFrame:
    return pd.DataFrame({"arrival_s": np.arange(num_requests) / rate, "prompt_tokens": 1000, "output_tokens": 100})


def ran(model: str = DENSE, trace: Any = None, *, replicas: int = 1, router: str = "least_loaded", **given: Any) -> Any:
    engine = served(**{"data_parallel_size": 2} | given.pop("engine", {}))
    fleet = {"pools": [{"replicas": replicas}], "router": router, **given}
    return sim.simulate(
        model, "h100-sxm", burst() if trace is None else trace, engine=engine, fleet=fleet, intervals=False
    )


@pytest.mark.parametrize(("model", "address"), [(DENSE, {}), (MOE, {}), (MOE, ADDRESSES["a rank"])])
def test_a_policy_that_never_acts_changes_nothing(model: str, address: dict[str, Any]) -> None:
    """As many servers at least as at most: the same requests and steps as of a fleet that stays, but for the last digits of times."""
    fixed = ran(model, replicas=2, router="power_of_two", engine=address)
    bounded = ran(model, replicas=2, router="power_of_two", engine=address, autoscale=HPA | {"min": 2, "max": 2})
    pd.testing.assert_frame_equal(bounded.requests, fixed.requests, rtol=1e-12)
    pd.testing.assert_frame_equal(bounded.steps, fixed.steps, rtol=1e-12)
    for key in ("gpu_hours", "cost_usd", "gpu_busy_fraction", "p99_ttft_ms", "num_steps"):
        assert bounded.summary[key] == pytest.approx(fixed.summary[key]), key
    for key in ("num_lock_steps", "num_waves", "dummy_step_share", "rank_padding_share"):
        assert bounded.summary.get(key) == pytest.approx(fixed.summary.get(key)), key
    assert [row["server"] for row in bounded.summary["replicas"]] == [0, 0, 1, 1]
    assert bounded.summary["mean_replicas"] == pytest.approx(2)


@pytest.mark.parametrize("model", [DENSE, MOE])
def test_servers_are_asked_for_and_their_gpus_counted(model: str) -> None:
    """Each with two engines on a GPU each, which come and go together."""
    found = ran(model, burst(1200, 40.0), autoscale=HPA | {"target": 20, "start_up_s": 5}).summary
    assert 1 < found["mean_replicas"] < found["max_replicas"] <= 3
    assert found["gpu_hours"] == pytest.approx(2 * found["mean_replicas"] * found["duration"] / 3600)
    assert found["fleet"]["servers"] == 1
    rows = found["replicas"]
    assert [row["server"] for row in rows] == [0, 0, 1, 1, 2, 2]
    for first, second in zip(rows[::2], rows[1::2], strict=True):
        assert first["lives"] == second["lives"]
    assert rows[2]["lives"][0]["started_s"] > 0
    assert rows[3]["requests"] > 0
    assert sum(row["completed"] for row in rows) == found["completed"] == 1200
    (pool,) = found["pools"]
    assert 0 < pool["gpu_busy_fraction"] == found["gpu_busy_fraction"] <= 1
    assert pool.get("num_lock_steps") == found.get("num_lock_steps")
    assert ("num_lock_steps" in found) == (model == MOE)


@pytest.mark.parametrize("lost", ["retry", "resume", "fail"])
@pytest.mark.parametrize(("model", "address"), [(DENSE, {}), (MOE, {}), (MOE, ADDRESSES["a rank"])])
def test_a_fault_takes_a_whole_server(model: str, address: dict[str, Any], lost: str) -> None:
    """Both its engines are gone until both are ready again, and their requests add up."""
    found = ran(model, replicas=2, recovery={"lost": lost}, engine=address, **FAULT)
    summary, requests = found.summary, found.requests
    assert summary["completed"] + summary["rejected"] + summary["failed"] == summary["arrived"] == 400
    assert (summary["failed"] > 0) == (lost == "fail")
    if lost == "fail":
        failed = requests.dropna(subset=["failed"])
        assert set(failed["failed"]) == {"server 1 was lost"}
        assert set(failed["replica"]) == {2, 3}
    else:
        assert (requests["generated_tokens"] == 100).all()
    steps = found.steps
    of_lost = steps[steps["replica"].isin([2, 3])]
    assert not of_lost["start_s"].between(10.1, 15).any()
    assert (of_lost["start_s"] > 15).any()
    life = {"started_s": 0, "ready_s": [0, 15], "lost_s": [10], "gone_s": None}
    assert [row["lives"] for row in summary["replicas"]] == [[life | {"ready_s": [0], "lost_s": []}]] * 2 + [[life]] * 2


@pytest.mark.parametrize("lost", ["retry", "resume", "fail"])
def test_a_fault_takes_all_nodes_of_a_server(lost: str) -> None:
    """Whose ranks step together; the gateway finds both addresses of the other one."""
    found = ran(MOE, replicas=2, recovery={"lost": lost}, engine=NODES, **FAULT)
    summary, requests = found.summary, found.requests
    assert summary["completed"] + summary["failed"] == summary["arrived"] == 400
    assert summary["fleet"]["addresses"] == 4
    assert [row["address"] for row in summary["replicas"]] == [0, 0, 1, 1, 2, 2, 3, 3]
    of_lost = found.steps[found.steps["replica"] >= 4]
    assert not of_lost["start_s"].between(10.1, 15).any()
    assert (of_lost["start_s"] > 15).any()
    if lost == "fail":
        failed = requests.dropna(subset=["failed"])
        assert set(failed["failed"]) == {"server 1 was lost"}
        assert set(failed["replica"] // 2) == {2, 3}


def test_servers_of_nodes_are_asked_for() -> None:
    """Whole, with the addresses of all their nodes."""
    found = ran(MOE, burst(1200, 40.0), engine=NODES, autoscale=HPA | {"target": 20, "start_up_s": 5}).summary
    assert found["completed"] == 1200
    assert 1 < found["max_replicas"] <= 3
    assert [row["address"] for row in found["replicas"]] == [number // 2 for number in range(12)]
    assert found["gpu_hours"] == pytest.approx(4 * found["mean_replicas"] * found["duration"] / 3600)


def test_a_run_is_its_seed_s(tmp_path: Path) -> None:
    """Same seed, same bytes; replicas.csv says when each engine takes requests."""
    drawn: dict[str, Any] = {
        "faults": [{"mtbf_s": 15, "mttr_s": 2}],
        "start_up": 2,
        "autoscale": HPA,
        "admission": {"timeout_s": 8},
    }
    one, two = (ran(MOE, router="random", **drawn) for _ in range(2))
    assert one.requests.equals(two.requests)
    assert one.steps.equals(two.steps)
    one.write(tmp_path / "one")
    over_time = pd.read_csv(tmp_path / "one" / "replicas.csv").pivot_table(
        index="time_s", columns="replica", values="is_ready"
    )
    assert (over_time[0] == over_time[1]).all()
    assert not over_time[0].all()


def test_the_step_log_names_a_server_s_ranks() -> None:
    rows: list[dict[str, Any]] = []
    sim.simulate(
        MOE,
        "h100-sxm",
        burst(60),
        engine=served(data_parallel_size=2),
        fleet={"faults": [{"at_s": 1, "replica": 0}], "start_up": 1},
        intervals=False,
        step_log=rows.append,
    )
    assert {(row["replica"], row["server"], row["rank"]) for row in rows} == {(0, 0, 0), (1, 0, 1)}


def test_what_an_autoscaler_sees_of_a_server() -> None:
    """The sum of its series and the mean of shares; the variant autoscaler the most of each."""
    engines = [(3, 4, 0.5), (1, 8, 0.25)]
    assert autoscaler_options("hpa").autoscaler().together(engines) == (4, 12, 0.375)
    assert autoscaler_options("llm_d_wva").autoscaler().together(engines) == (3, 8, 0.5)


def test_policies_of_servers_are_searched() -> None:
    space: dict[str, list[Any]] = {"autoscale": [None, "hpa:metric=in_flight,target=20,max=2,sync_s=5"]}
    fleet = {"start_up": 1, "router": "round_robin"}
    found = optimize(
        MOE, "h100-sxm", burst(600, 40.0), engine=served(data_parallel_size=2), fleet=fleet, space=space, trials=2
    )
    hours = sorted(row["metrics"]["gpu_hours"] for row in found.summary["candidates"])
    assert len(hours) == 2
    assert hours[0] < hours[1]


def test_routers_before_servers_that_change_are_compared() -> None:
    fleet = {"pools": [{"replicas": 2}], **FAULT}
    found = sim.compare(
        MOE,
        "h100-sxm",
        burst(200),
        engine=served(data_parallel_size=2),
        fleet=fleet,
        routers=["round_robin", "llm_d"],
        intervals=False,
    )
    for run in found.results.values():
        assert run.summary["completed"] == 200
        assert [row["server"] for row in run.summary["replicas"]] == [0, 0, 1, 1]
