"""Pools that hand KV over in a fleet that changes, from Python: what becomes of requests, of KV, and of each pool."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

import sim
from tests.test_fleet_changes import burst

POOLS = [{"name": "prompts", "role": "prefill", "replicas": 2}, {"name": "answers", "role": "decode", "replicas": 2}]


def run(trace: pd.DataFrame | None = None, version: str | None = None, **fleet: Any) -> Any:
    return sim.simulate(
        "Llama-3.1-8B",
        "h100-sxm",
        burst(rate=20.0) if trace is None else trace,
        fleet={"pools": POOLS, "start_up": 2} | fleet,
        vllm_version=version,
        intervals=False,
    )


@pytest.mark.parametrize("replica", [0, 2])
@pytest.mark.parametrize("lost", ["retry", "fail"])
def test_the_loss_of_either_side(replica: int, lost: str) -> None:
    """Requests are tried again, or fail with the replica that was lost; nothing is served by it while it is away."""
    found = run(faults=[{"at_s": 3.0, "replica": replica, "for_s": 1e6}], recovery={"lost": lost})
    failed = found.requests["failed"].dropna()
    assert found.summary["completed"] + len(failed) == len(burst())
    assert (len(failed) > 0) == (lost == "fail")
    assert set(failed) <= {f"replica {replica} was lost", "its KV was lost"}
    served = "prefill_replica" if replica == 0 else "replica"
    late = found.requests[(found.requests["arrival_s"] > 3) & found.requests["failed"].isna()]
    assert replica not in set(late[served])


def test_where_nobody_can_prefill_the_decode_replica_does() -> None:
    """As with llm-d, which then has no prefill replica to name."""
    both = [{"at_s": 3.0, "replica": number, "for_s": 1e6} for number in (0, 1)]
    found = run(faults=both)
    late = found.requests[found.requests["arrival_s"] > 3]
    assert found.summary["completed"] == len(burst())
    assert set(late["prefill_replica"]) == {-1}


def test_a_lost_decode_replica_lets_leases_end() -> None:
    """Prompts of 2,000 tokens on a slow link: what the lost one was pulling stays with the others until 20 s after it was last heard of."""
    slow = {"bandwidth_gb_s": 0.05}
    fault = [{"at_s": 4.0, "replica": 2, "for_s": 1e6}]
    found = run(faults=fault, transfer=slow).summary["kv_transfers"]
    assert found["expired_leases"] > 0
    assert run(transfer=slow).summary["kv_transfers"]["expired_leases"] == 0


def test_the_lease_of_older_versions_ends_whoever_lives() -> None:
    """A queue for blocks of the decode replica outlasts it: requests fail with what they waited for, or are computed again."""
    pools = [
        POOLS[0],
        {"name": "answers", "role": "decode", "engine": {"max_model_len": 2304, "num_gpu_blocks_override": 150}},
    ]
    short = {"kv_lease_duration": 5}
    stays = {"pools": pools, "transfer": short}
    facts: dict[str, Any] = {"vllm_version": "0.25.1", "fleet": stays, "intervals": False}
    old = sim.simulate("Llama-3.1-8B", "h100-sxm", burst(rate=20.0), **facts)
    assert old.summary["failed"] > 0
    assert set(old.requests["failed"].dropna()) == {"its KV was given up by the replica that prefilled it"}
    assert run(version="0.26.0", pools=pools, transfer=short).summary["failed"] == 0
    again = run(version="0.25.1", pools=pools, transfer=short | {"kv_load_failure_policy": "recompute"}).summary
    assert (again["failed"], again["kv_transfers"]["failed_pulls"] > 0) == (0, True)
    retried = run(version="0.25.1", pools=pools, transfer=short, recovery={"retries": 1}).requests["failed"].dropna()
    assert set(retried) <= {"its KV was lost after 1 retries"}


def test_pools_scale_apart() -> None:
    """A planner's prefill pool grows by its TTFT, its decode pool by its ITL."""
    slow = burst(400, 40.0, output_tokens=20)
    pools = [
        {"name": "prompts", "role": "prefill", "autoscale": "dynamo:max=4,ttft_s=0.2"},
        {"name": "answers", "role": "decode", "autoscale": "dynamo:max=4,itl_s=0.5"},
    ]
    found = run(slow, pools=pools).summary
    lives = {
        name: sum(len(one["lives"]) for one in found["replicas"] if one["pool"] == name)
        for name in ("prompts", "answers")
    }
    assert lives["prompts"] > lives["answers"] == 1
    assert found["completed"] == len(slow)


def test_timeouts_end_prompts_too() -> None:
    """What is aborted before its prompt is done holds nothing anywhere; all are accounted for."""
    found = run(burst(100, 200.0), admission={"timeout_s": 1.0})
    assert found.summary["failed"] > 0
    assert found.summary["completed"] + found.summary["failed"] == 100
    assert np.isfinite(found.requests["e2el_ms"].dropna()).all()
