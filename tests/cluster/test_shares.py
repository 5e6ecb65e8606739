"""Replicas that nothing ties to each other do in shares what they do side by side, and what naive ones do."""

import pickle
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.clients import AT_THEIR_TIMES, Clients
from sim.cluster.dynamics import Dynamics
from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.records import ClusterRecords
from sim.cluster.routers.table import ROUTERS, router_options
from sim.cluster.shares import put_together, simulate_share, why_not_in_shares
from sim.cluster.simulation import simulate
from sim.cluster.users import Users
from sim.engine import leaps
from sim.engine.records import LoraRecords, OffloadRecords, SpeculationRecords, SwapRecords
from sim.workload.trace import Trace
from tests.cluster.test_clusters_agree import assert_same_run, panel_bits
from tests.configs import changed, scheduler_config
from tests.engine.test_engines_agree import Telling, assert_same_records
from tests.makers import ONE_SECOND, Ask, make_trace
from tests.properties import engine_examples as examples
from tests.reference.cluster import simulate_cluster
from tests.workloads import Workload, workloads

BLIND = [name for name in ROUTERS if router_options(name).is_blind]
CONFIG = scheduler_config(block_size=4, num_gpu_blocks=60, max_model_len=100, max_num_seqs=3)
TRACE = make_trace([Ask(f"r{row}", 5 + row, 6, at=row) for row in range(12)])


def in_shares(trace: Trace, plan: FleetPlan, num_shares: int) -> ClusterRecords:
    """Simulated by processes that share nothing, as far as the data can tell."""
    shares = [simulate_share(trace, plan, range(n, plan.num_replicas, num_shares), seed=0) for n in range(num_shares)]
    return put_together(trace, plan, [pickle.loads(pickle.dumps(share)) for share in reversed(shares)])  # noqa: S301 - ours


@examples(60)
@given(
    workload=workloads(),
    num_replicas=st.integers(1, 4),
    num_shares=st.integers(1, 3),
    router=st.sampled_from([*BLIND, "llm_d:queue=0,kv=0,no_hit_lru=1,lru_blocks=9"]),
    panel_bits=panel_bits,
)
def test_shares_are_the_run(
    workload: Workload, num_replicas: int, num_shares: int, router: str, panel_bits: tuple[int, ...]
) -> None:
    trace, config, step_time = workload[0], workload[1], Telling(workload[2])
    plan = FleetPlan.alike(config, step_time, num_replicas, router)
    with patch.object(leaps, "PANEL_BITS", panel_bits):
        found = in_shares(trace, plan, num_shares)
        assert_same_records(found.merged, simulate(trace, plan).merged)
    assert_same_run(found, simulate_cluster(trace, config, step_time, num_replicas=num_replicas, router=router))


def test_shares_say_who_was_turned_away_and_who_failed() -> None:
    """A request beyond a server's limit, and one that is too long for all."""
    trace = make_trace([*(Ask(f"r{row}", 8, 20, at=0) for row in range(6)), Ask("long", 200, 1, at=1)])
    plan = FleetPlan.alike(changed(CONFIG, max_num_queued_reqs=2), ONE_SECOND, 2, "round_robin")
    found, expected = in_shares(trace, plan, 2).merged.requests, simulate(trace, plan).merged.requests
    assert found.rejected == expected.rejected
    assert sorted(found.rejected) == [4, 5, 6]


def test_answers_of_one_request_are_of_one_share() -> None:
    trace = replace(TRACE, n=np.arange(1, 13) % 3 + 1)
    plan = FleetPlan.alike(CONFIG, ONE_SECOND, 3, "round_robin")
    found, expected = in_shares(trace, plan, 2), simulate(trace, plan)
    assert_same_records(found.merged, expected.merged)
    assert found.replica.tolist() == expected.replica.tolist()


def test_what_engines_record_beside_their_leaps_can_be_sent() -> None:
    """Compiled classes say themselves what they are made of."""
    rows = np.arange(3)
    for records in (LoraRecords(1, 2, 3.0), SwapRecords(1, 2, 3.0, 0.5), SpeculationRecords((3, 2), 9)):
        assert pickle.loads(pickle.dumps(records)) == records  # noqa: S301 - ours
    tier: OffloadRecords = pickle.loads(pickle.dumps(OffloadRecords(rows, rows, 4, 5, 6)))  # noqa: S301
    assert (tier.loaded_rows.tolist(), tier.external_prefix_cache_hits) == ([0, 1, 2], 6)


TIED: Mapping[str, Any] = {
    "there is one replica": {"num_replicas": 1},
    "replicas that come and go": {"dynamics": Dynamics()},
    "router least_loaded looks at them": {"router": "least_loaded"},
    "router llm_d looks at them": {"router": "llm_d:prefix=5"},
}


@pytest.mark.parametrize("reason", TIED)
def test_why_replicas_cannot_be_simulated_apart(reason: str) -> None:
    arguments = {"num_replicas": 2, "router": "random"} | TIED[reason]
    found = why_not_in_shares(TRACE, FleetPlan.alike(CONFIG, ONE_SECOND, **arguments), AT_THEIR_TIMES)
    assert str(found).startswith(reason)


def test_clients_who_wait_tie_replicas_to_each_other() -> None:
    plan = FleetPlan.alike(CONFIG, ONE_SECOND, 2, "random")
    assert why_not_in_shares(TRACE, plan, AT_THEIR_TIMES) is None
    for clients in (Clients(Users(2)), Clients(max_concurrency=3)):
        assert "wait for answers" in str(why_not_in_shares(TRACE, plan, clients))
