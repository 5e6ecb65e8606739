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
from sim.engine.records import OffloadRecords
from sim.engine.walking.modes import Modes
from sim.memory.kv_cache import KVGroup
from sim.memory.transfers import ReplicaKV
from sim.specs.kv_transfer import OffloadConfig
from tests.cluster.sharing import served
from tests.conformance.case import load_parts

GOLDEN = Path(__file__).parents[1] / "golden/stored_runs.json.gz"
RUNS: list[dict[str, Any]] = json.loads(gzip.decompress(GOLDEN.read_bytes()))["runs"]
WITHIN_NS = 3


@pytest.mark.parametrize("run", RUNS, ids=[run["name"] for run in RUNS])
def test_a_store_is_that_of_vllm(run: dict[str, Any]) -> None:
    """Of full attention, windows and states, with and without async scheduling; of full attention also behind a CPU tier, as MultiConnector has them.

    A GPU that has forgotten all is a replica that was lost while it was idle.
    """
    found, ids = replayed(run), [request["id"] for request in run["requests"]]
    assert found.merged.stored is not None
    assert loads_of(found.merged.stored, ids) == sorted(run["loads"])
    assert loads_of(found.merged.offload, ids) == sorted(run.get("tier_loads", []))
    requests = found.merged.requests
    times = np.stack([requests.first_scheduled_s, requests.first_token_s, requests.finish_s], axis=1)
    np.testing.assert_allclose(times, [run["times_ns"][name] for name in ids], rtol=0, atol=WITHIN_NS)


def loads_of(loads: OffloadRecords | None, ids: list[str]) -> list[list[Any]]:
    """Request by request, how many tokens."""
    if loads is None:
        return []
    rows, tokens = loads.loaded_rows.tolist(), loads.loaded_tokens.tolist()
    return sorted([ids[row], count] for row, count in zip(rows, tokens, strict=True))


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
    pool = Pool(config, step_time, 1, role=role, kv=kv, modes=Modes(offload=tier_of(run)))
    dynamics, sharing = Dynamics(faults=tuple(losses)), StoreSharing(options, card_bytes_per_s=1e21)
    idle_sleep_s = float(run["config"]["idle_sleep_ns"])
    if losses:
        with patch.object(ChangingSharingFleet, "idle_sleep_s", idle_sleep_s):
            return simulate(trace, FleetPlan((pool,), "round_robin", dynamics, sharing=sharing))
    return served(trace, FleetPlan((pool,), "round_robin", sharing=sharing), idle_sleep_s)


def tier_of(run: dict[str, Any]) -> OffloadConfig | None:
    """Where an OffloadingConnector comes first."""
    kv, time = run["config"]["kv"], run["time"]
    if "cpu_chunks" not in kv:
        return None
    copies = {name.replace("_ns", "_s"): time[name] for name in time if name.startswith(("load_", "store_"))}
    return OffloadConfig(kv["cpu_chunks"], **copies, eviction_policy=kv["eviction_policy"], reports_at_start=True)
