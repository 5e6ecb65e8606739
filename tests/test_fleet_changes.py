"""Fleets that change, from Python: replicas over time and what they cost, losses, and requests that are turned away."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import sim
from sim.cluster.routers.table import ROUTERS
from sim.errors import ConfigError, SimError


def burst(num_requests: int = 120, rate: float = 4.0, **columns: Any) -> pd.DataFrame:
    arrival_s = np.arange(num_requests) / rate
    return pd.DataFrame({"arrival_s": arrival_s, "prompt_tokens": 2000, "output_tokens": 200, **columns})


def run(trace: pd.DataFrame | None = None, replicas: int = 1, router: str = "least_loaded", **sections: Any) -> Any:
    return sim.simulate(
        "Llama-3.1-8B",
        "h100-sxm",
        burst() if trace is None else trace,
        engine=sim.EngineConfig(max_num_seqs=4),
        fleet={"pools": [{"replicas": replicas}], "router": router, **sections},
        intervals=False,
    )


def test_a_policy_that_never_acts_changes_nothing() -> None:
    """As many replicas at least as at most, whatever they are asked for."""
    fixed = run(replicas=2, router="power_of_two")
    bounded = run(replicas=2, router="power_of_two", autoscale={"policy": "hpa", "min": 2, "max": 2, "start_up_s": 10})
    assert bounded.requests.equals(fixed.requests)
    assert bounded.steps.equals(fixed.steps)
    for key in ("gpu_hours", "gpu_busy_fraction", "p99_ttft_ms", "num_steps"):
        assert bounded.summary[key] == pytest.approx(fixed.summary[key]), key
    assert bounded.summary["mean_replicas"] == pytest.approx(2)


def test_a_queue_calls_for_replicas_which_cost_gpu_hours_from_their_start() -> None:
    found = run(autoscale={"policy": "hpa", "target": 2, "max": 3, "start_up_s": 5}).summary
    alone = run().summary
    assert found["mean_ttft_ms"] < alone["mean_ttft_ms"] / 2
    changes = found["replicas_over_time"]
    assert changes[0] == {"at_s": 0.0, "replicas": 1, "ready": 1}
    grown = next(change for change in changes if change["replicas"] > 1)
    ready = next(change for change in changes if change["ready"] > 1)
    assert ready["at_s"] == grown["at_s"] + 5
    assert found["gpu_hours"] == pytest.approx(found["mean_replicas"] * found["duration"] / 3600)
    assert 1 < found["mean_replicas"] < found["max_replicas"] == 3
    assert found["start_up"] == {"pool 0": {"given_s": 5}}
    assert sum(replica["completed"] for replica in found["replicas"]) == found["completed"] == 120


def test_a_fleet_that_completes_nothing_costs_what_it_holds() -> None:
    """Nobody waits for an answer, and two replicas run for half a minute all the same; one that was lost holds its GPU."""
    found = run(replicas=2, admission={"timeout_s": 0.01}).summary
    assert found["completed"] == 0
    assert found["duration"] is None
    assert found["gpu_hours"] == pytest.approx(2 * 119 / 4 / 3600, rel=0.01)
    assert found["mean_replicas"] == pytest.approx(2)
    assert found["cost_usd"] > 0
    losses = [{"at_s": 0.1, "replica": replica, "for_s": 10} for replica in range(2)]
    gone = run(burst(1), replicas=2, recovery={"lost": "fail"}, faults=losses)
    assert gone.summary["completed"] == 0
    assert gone.summary["gpu_hours"] > 0


def test_start_up_takes_as_long_as_measured_starts_did() -> None:
    found = run(autoscale={"policy": "hpa", "target": 2, "max": 2}, start_up={"weights": "nvme", "compile": "cached"})
    (phases,) = found.summary["start_up"].values()
    assert phases["weights_s"] == pytest.approx(found.deployment.plan.weights_bytes / 2.338e9)
    changes = found.summary["replicas_over_time"]
    assert changes[-1]["at_s"] - changes[-2]["at_s"] == pytest.approx(sum(phases.values()))


@pytest.mark.parametrize("lost", ["retry", "resume", "fail"])
def test_a_lost_replica_s_requests_end_and_add_up(lost: str) -> None:
    found = run(replicas=2, faults=[{"at_s": 10, "replica": 0, "for_s": 15}], recovery={"lost": lost}, start_up=5)
    summary, requests = found.summary, found.requests
    assert summary["completed"] + summary["rejected"] + summary["failed"] == summary["arrived"] == 120
    assert (summary["failed"] > 0) == (lost == "fail")
    (life,) = summary["replicas"][0]["lives"]
    assert life == {"started_s": 0, "ready_s": [0, 30], "lost_s": [10], "gone_s": None}
    if lost == "fail":
        assert set(requests["failed"].dropna()) == {"replica 0 was lost"}
    else:
        assert (requests["generated_tokens"] == 200).all()


def test_a_cpu_tier_is_lost_with_its_replica() -> None:
    """The second of two equal prompts finds the first one's KV in host memory, unless that replica was lost in between."""
    tier = {"num_gpu_blocks_override": 160, "max_model_len": 2400, "kv_offloading_size": 4}
    asked = pd.DataFrame(
        {"arrival_s": [0.0, 20.0, 40.0], "prompt_tokens": 2000, "output_tokens": 20, "hash_ids": [[1], [2], [1]]}
    )
    asked["hash_block_size"] = 2000
    loaded = {}
    for slow in (2.0, None):
        fault = {"at_s": 30, "replica": 0} | ({"slow": slow} if slow else {})
        fleet = {"pools": [{"engine": tier}], "faults": [fault], "start_up": 2}
        found = sim.simulate("Llama-3.1-8B", "h100-sxm", asked, fleet=fleet, intervals=False)
        loaded[slow] = found.requests["num_loaded_tokens"].tolist()
    assert loaded[2.0][2] > 1000
    assert loaded[None] == [0, 0, 0]


def test_resumed_requests_keep_their_first_token_and_their_tokens() -> None:
    fault: dict[str, Any] = {"replicas": 2, "faults": [{"at_s": 10, "replica": 0}], "start_up": 5}
    found = {lost: run(recovery={"lost": lost}, **fault) for lost in ("retry", "resume")}
    assert found["resume"].summary["mean_ttft_ms"] < found["retry"].summary["mean_ttft_ms"]
    assert found["resume"].summary["total_output_tokens"] == found["retry"].summary["total_output_tokens"]


@pytest.mark.parametrize("router", ROUTERS)
def test_any_router_does_with_replicas_that_come_and_go(router: str) -> None:
    """Requests add up, and none is sent where no replica was."""
    found = run(
        router=router,
        autoscale={
            "policy": "hpa",
            "metric": "in_flight",
            "target": 6,
            "max": 4,
            "scale_down_window_s": 5,
            "start_up_s": 4,
        },
        faults=[{"mtbf_s": 20, "mttr_s": 3}],
    )
    summary = found.summary
    assert summary["completed"] + summary["rejected"] + summary["failed"] == 120
    assert summary["max_replicas"] > 1
    served = {replica for replica in found.requests["replica"] if replica >= 0}
    assert served <= {number for number, replica in enumerate(summary["replicas"]) if replica["lives"]}


def test_a_slow_node_takes_longer() -> None:
    slow = run(replicas=2, faults=[{"at_s": 0, "replica": 1, "for_s": 1000, "slow": 3}])
    tpot = slow.requests.groupby("replica")["tpot_ms"].median()
    assert 2 < tpot[1] / tpot[0] < 4


def test_an_unnoticed_loss_is_found_out_by_a_circuit_breaker() -> None:
    """Without one, a request tries the lost replica again and again, for it seems to be idle."""
    hidden: dict[str, Any] = {"probe_interval_s": 60, "retries": 3, "backoff_s": 0.1}
    fault: dict[str, Any] = {"replicas": 2, "faults": [{"at_s": 5, "replica": 0, "for_s": 100}], "start_up": 5}
    failed = [run(recovery=hidden | extra, **fault).summary["failed"] for extra in ({}, {"circuit_failures": 5})]
    assert failed[0] > 5 * max(1, failed[1])


def test_requests_are_turned_away_for_stated_reasons() -> None:
    full = run(admission={"max_queued": 3}).requests["rejected"].dropna()
    assert set(full) == {"3 requests were waiting"}
    late = run(admission={"timeout_s": 8})
    assert set(late.requests["failed"].dropna()) == {"not answered within 8 s"}
    done = late.requests[late.requests["failed"].isna()]
    assert (done["e2el_ms"] <= 8000).all()
    kept = run(admission={"max_concurrent": 4, "queue_timeout_s": 5}).requests
    assert set(kept["rejected"].dropna()) == {"waited 5 s at the gateway"}


def test_priorities_order_the_gateway_s_queue() -> None:
    trace = burst(priority=[1, 0] * 60)
    found = run(trace, admission={"max_concurrent": 4, "order": "priority"}).requests
    waits = (found["first_scheduled_s"] - found["arrival_s"]).groupby(found["priority"]).mean()
    assert waits[0] < waits[1] / 3


def test_the_same_seed_draws_the_same_faults() -> None:
    drawn: dict[str, Any] = {"replicas": 2, "faults": [{"mtbf_s": 15, "mttr_s": 3}], "start_up": 2}
    one, other = run(**drawn), run(**drawn)
    assert one.requests.equals(other.requests)
    assert one.summary["replicas"][0]["lives"][0]["lost_s"]


def test_no_replica_in_a_day_is_given_up() -> None:
    found = run(autoscale={"policy": "schedule", "times": [[0, 0]], "min": 0, "check_s": 600})
    assert found.summary["rejected"] == 120
    assert set(found.requests["rejected"]) == {"no replica was asked for in a day"}


def test_replicas_that_are_lost_before_they_are_ready_are_given_up() -> None:
    """A start of 120 s outlives a mean of one second with a probability of 1e-52."""
    found = run(burst(5), faults=[{"mtbf_s": 1, "mttr_s": 1}], start_up=120)
    assert found.summary["rejected"] + found.summary["failed"] == 5
    reasons = set(found.requests["rejected"].dropna()) | set(found.requests["failed"].dropna())
    assert reasons == {"no replica was ready in a day"}


def test_without_smoothing_the_last_share_counts() -> None:
    found = run(autoscale={"policy": "llm_d_slo", "smoothing_s": 0, "ttft_s": 0.5, "start_up_s": 5})
    assert found.summary["max_replicas"] > 1


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        (
            {"autoscale": {"policy": "hpa", "start_up_s": 3}, "start_up": 5},
            "autoscale.start_up_s and start_up both say",
        ),
        ({"faults": [{"at_s": 1, "replica": 4}]}, r"faults\[0\]: replica must be from 0 to 0, got 4"),
        ({"admission": {"max_queue": 4}}, "admission has no option 'max_queue'.*Did you mean max_queued"),
        ({"recovery": {"lost": "drop"}}, "recovery: lost must be one of retry, fail, resume, got 'drop'"),
        ({"start_up": {"image": "slow"}}, "start_up: image must be one of cached, streamed, pulled"),
        ({"autoscale": {"policy": "hpa", "max": 0}}, "max must be an integer of at least 1 and of at most 512, got 0"),
        ({"autoscale": {"policy": "hpa", "max": 10**6}}, "max must be an integer .* of at most 512, got 1000000"),
        ({"replicas": 9, "autoscale": "hpa"}, "max must be at least the 9 replicas of the pool, got 8"),
        ({"autoscale": {"policy": "hpa", "target": math.inf}}, r"target must be at most 1e\+09, got inf"),
        ({"autoscale": {"policy": "schedule", "times": 5}}, "autoscaler schedule: times must be a list, got 5"),
        (
            {"autoscale": {"policy": "schedule", "times": [[0, 9]]}},
            r"times must ask for 1 to 8 replicas \(min and max\), got 9",
        ),
        ({"autoscale": {"policy": "llm_d_slo", "up": 0.3}}, "down must be less than up, got 0.4 and 0.3"),
        ({"start_up": math.inf}, r"start_up: seconds must be at most 1e\+09, got inf"),
        ({"faults": [{"at_s": 1, "replica": 0, "for_s": math.inf}]}, r"for_s must be at most 1e\+09, got inf"),
        ({"faults": [{"at_s": 1, "replica": 0, "slow": 1e300}]}, r"slow must be at most 1e\+09, got 1e\+300"),
        ({"admission": {"timeout_s": math.inf}}, r"admission: timeout_s must be at most 1e\+09, got inf"),
    ],
)
def test_what_cannot_be_asked_for(sections: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        run(**sections)


def test_each_pool_has_its_policy() -> None:
    """One that stays beside one that a schedule starts and ends; figures and lives are by pool."""
    times = [[0, 0], [10, 2], [25, 0]]
    pools = [
        {"name": "stays"},
        {"name": "peaks", "gpu": "h200-sxm", "autoscale": {"policy": "schedule", "times": times, "min": 0, "max": 2}},
    ]
    found = sim.simulate("Llama-3.1-8B", "h100-sxm", burst(), fleet={"pools": pools, "start_up": 2}, intervals=False)
    assert [replica["pool"] for replica in found.summary["replicas"]] == ["stays", "peaks", "peaks"]
    assert [len(replica["lives"]) for replica in found.summary["replicas"]] == [1, 2, 1]  # one is there until 0 s
    peak = found.requests[found.requests["replica"] > 0]["arrival_s"]
    assert 12 <= peak.min() < peak.max() <= 25
    assert sum(pool["completed"] for pool in found.summary["pools"]) == len(burst())
    assert 1 < found.summary["mean_replicas"] < 3


def test_each_pool_starts_in_its_own_time() -> None:
    """What a pool does not say is the fleet's, and its policy may say it as well. Both first replicas are lost at 1 s."""
    policy = {"policy": "schedule", "times": [[0, 1]], "start_up_s": 5}
    faults = [{"at_s": 1, "replica": number} for number in range(2)]

    def starts_of(*pools: dict[str, Any], **sections: float) -> tuple[dict[str, Any], list[list[float]]]:
        fleet = {"pools": [*pools], "faults": faults, **sections}
        found = sim.simulate("Llama-3.1-8B", "h100-sxm", burst(), fleet=fleet, intervals=False).summary
        return found["start_up"], sorted(life["ready_s"] for row in found["replicas"] for life in row["lives"])

    starts, ready_s = starts_of({"name": "as all"}, {"name": "own", "start_up": 3}, start_up=2)
    assert (starts, ready_s) == ({"as all": {"given_s": 2}, "own": {"given_s": 3}}, [[0, 3], [0, 4]])
    starts, _ = starts_of({"start_up": 3}, {"name": "scaled", "autoscale": policy})
    assert [sum(phases.values()) for phases in starts.values()] == [3, 5]
    with pytest.raises(ConfigError, match=r"autoscale\.start_up_s and start_up both say"):
        starts_of({}, {"autoscale": policy, "start_up": 3})


def test_a_policy_is_said_once(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text("pools: [{replicas: 1, autoscale: hpa}, {replicas: 1}]\nautoscale: hpa\n")
    with pytest.raises(SimError, match=r"fleet.yaml: `autoscale` must be left out where pools have their own"):
        sim.simulate("Llama-3.1-8B", "h100-sxm", burst(3), fleet=path, intervals=False)
    path.write_text("pools: [{replicas: 1}, {replicas: 9, autoscale: hpa}]\n")
    with pytest.raises(ConfigError, match=r"fleet.yaml: autoscale: max must be at least the 9 replicas of the pool"):
        sim.simulate("Llama-3.1-8B", "h100-sxm", burst(3), fleet=path, intervals=False)
    path.write_text("pools: [{replicas: 1}, {replicas: 1}]\nautoscale: hpa\n")
    with pytest.raises(ConfigError, match=r"fleet.yaml: autoscale works on a fleet of one pool, got 2"):
        sim.simulate("Llama-3.1-8B", "h100-sxm", burst(3), fleet=path, intervals=False)
