"""Runs of vLLM's own scheduler with its MooncakeStoreConnector: what is loaded for whom, and when each request is scheduled and answered."""

import gzip
import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from sim.cluster.changing_sharing import ChangingSharingFleet
from sim.cluster.dynamics import Dynamics
from sim.cluster.engine_role import Role
from sim.cluster.faults import ScriptedFault
from sim.cluster.fleet_plan import FleetPlan, Pool
from sim.cluster.kv_store import StoreOptions, StoreSharing
from sim.cluster.records import ClusterRecords
from sim.cluster.simulation import simulate
from sim.memory.kv_cache import KVGroup
from sim.memory.transfers import ReplicaKV
from tests.conformance.case import load_parts

GOLDEN = Path(__file__).parents[1] / "golden/stored_runs.json.gz"
RUNS: list[dict[str, Any]] = json.loads(gzip.decompress(GOLDEN.read_bytes()))["runs"]
WITHIN_NS = 3


@pytest.mark.parametrize("run", RUNS, ids=[run["name"] for run in RUNS])
def test_a_store_is_that_of_vllm(run: dict[str, Any]) -> None:
    """Of full attention, windows and states, with and without async scheduling. A GPU that has forgotten all is a replica that was lost while it was idle."""
    found, ids = replayed(run), [request["id"] for request in run["requests"]]
    loads = found.merged.offload
    assert loads is not None
    rows, tokens = loads.loaded_rows.tolist(), loads.loaded_tokens.tolist()
    assert sorted([ids[row], count] for row, count in zip(rows, tokens, strict=True)) == sorted(run["loads"])
    requests = found.merged.requests
    times = np.stack([requests.first_scheduled_s, requests.first_token_s, requests.finish_s], axis=1)
    np.testing.assert_allclose(times, [run["times_ns"][name] for name in ids], rtol=0, atol=WITHIN_NS)


def replayed(run: dict[str, Any]) -> ClusterRecords:
    """In nanoseconds, with a store that answers at once and moves a chunk in a hundredth of one; a `kv_consumer` is an engine that decodes what others prefill."""
    trace, config, step_time = load_parts(run)
    kv_config = run["config"]["kv"]
    role: Role = "decode" if kv_config["role"] == "kv_consumer" else "both"
    losses = [ScriptedFault(request["arrival_ns"] - 1.0, 0, 0.0) for request in run["requests"] if request.get("reset")]
    options = StoreOptions(
        1e6,
        1e12,
        lookup_ms=0.0,
        chunk_us=1e4,
        chunk_tokens=config.block_size,
        save_decode_cache=kv_config.get("save_decode_cache", False),
    )
    kv = ReplicaKV(tuple(KVGroup("full", None, 1, config.block_size, 8) for _ in config.kv_groups), 1)
    plan = FleetPlan(
        (Pool(config, step_time, 1, role=role, kv=kv),),
        "round_robin",
        Dynamics(faults=tuple(losses)),
        sharing=StoreSharing(options, card_bytes_per_s=1e21),
    )
    with patch.object(ChangingSharingFleet, "idle_sleep_s", float(run["config"]["idle_sleep_ns"])):
        return simulate(trace, plan)
