"""Ranks that wait for KV, and ranks that hold it for others: what they cost the ranks that they step with."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simpy
from hypothesis import given

from sim.cluster.arrivals import arrivals
from sim.cluster.disaggregated_fleet import DisaggregatedFleet
from sim.cluster.engine_role import Role
from sim.cluster.engines import StepLog
from sim.cluster.fleet_plan import Disaggregation, FleetPlan, Pool, ServerPlan
from sim.cluster.leases import Lease
from sim.cluster.lock_step import RankCore
from sim.cluster.network import NetworkCosts
from sim.cluster.records import ClusterRecords
from sim.engine.rank_group import LockStepRules
from sim.engine.request_table import RequestTable
from sim.workload.trace import Trace
from tests.cluster.test_disaggregation import KV, STEP, a_trace
from tests.cluster.test_handing_ranks_agree import Servers, servers
from tests.configs import scheduler_config
from tests.properties import engine_examples as examples
from tests.reference.disaggregation import Disaggregated, ServerKind, simulate_disaggregated
from tests.reference.disaggregation import Pool as NaivePool

SLOW = NetworkCosts(bytes_per_s=2.0, latency_s=3.0, descriptor_s=0.0)
RULES = LockStepRules()
TWO_RANKS = ServerPlan(2, RULES)
NAIVE_RANKS = ServerKind(2, 2, "vllm_dp:interval_s=7", {"sync_interval": 16, "looks_at_once": True})
SYNC: dict[str, Any] = {"async_scheduling": False}


class KeptCores(DisaggregatedFleet):
    """A fleet whose engines can be looked at in the end."""

    def _core(self, pool: int, number: int, step_log: StepLog | None) -> RankCore:
        core = super()._core(pool, number, step_log)
        self.cores = [*getattr(self, "cores", ()), core]
        return core


def run(
    trace: Trace, plan: FleetPlan, rows: list[dict[str, Any]] | None = None
) -> tuple[ClusterRecords, list[RankCore]]:
    """With engines that sleep for a second after a call that ran nothing."""
    source = plan.source(trace)
    table = RequestTable(source)
    env = simpy.Environment(initial_time=min(0.0, float(trace.arrival_s[0])))
    fleet = KeptCores(env, plan, source, table, idle_sleep_s=1.0, step_log=None if rows is None else rows.append)
    env.process(arrivals(env, source, fleet.gateway.submit))
    env.run()
    handed, ranks = fleet.handovers, fleet.servers.ranks
    found = ClusterRecords.of(fleet.servers.records(), table, plan.pool_of, handovers=handed(), ranks=ranks)
    return found, fleet.cores


def a_pool(role: Role, server: ServerPlan | None = None, **arguments: Any) -> Pool:
    config = scheduler_config(**arguments)
    return Pool(config, STEP, server.num_engines if server else 1, role=role, kv=KV, server=server)


def a_plan(*pools: Pool, **handing: Any) -> FleetPlan:
    return FleetPlan(pools, "round_robin", disaggregation=Disaggregation(SLOW, **handing))


def naive(trace: Trace, *kinds: ServerKind | None, **arguments: object) -> Disaggregated:
    prefill, decode = (NaivePool(scheduler_config(**arguments), STEP, KV, 1, server=kind) for kind in kinds)
    return simulate_disaggregated(trace, prefill, decode, SLOW, idle_sleep_s=1.0)


def test_a_rank_that_waits_for_kv_runs_dummies_and_keeps_the_wave_alive() -> None:
    """Steps of 10 s, dummies too; KV is asked for at 10 s and there at 33 s, as for an engine by itself, which has its first token at 44 s.

    Each call that runs nothing is followed by a second of sleep and a dummy: calls at 10, 21, 32 and 43 s, of which the last hears of
    it. Its step is the fifth, from 54 s on.
    """
    rows: list[dict[str, Any]] = []
    pools = (a_pool("prefill", TWO_RANKS, **SYNC), a_pool("decode", TWO_RANKS, **SYNC))
    trace = a_trace((0.0, 80, 3))
    found, _ = run(trace, a_plan(*pools), rows)
    handed = found.handovers
    assert handed is not None
    assert (handed.pull_start_s[0], handed.pull_end_s[0]) == (10.0, 33.0)
    decoding = [(row["start"], row["end"], row["n"]) for row in rows if row["replica"] == 2]
    assert sorted(decoding)[:6] == [(11, 21, 0), (22, 32, 0), (33, 43, 0), (44, 54, 0), (54, 64, 1), (64, 74, 1)]
    requests = found.merged.requests
    assert (requests.first_token_s[0], requests.finish_s[0]) == (64.0, 84.0)
    (expected,) = naive(trace, NAIVE_RANKS, NAIVE_RANKS, **SYNC).requests
    assert (expected.first_token_s, expected.finish_s) == (64.0, 84.0)


RECORDED = json.loads((Path(__file__).parents[1] / "golden" / "waiting_ranks.json").read_text())["cases"]


@pytest.mark.parametrize("case", RECORDED)
def test_steps_are_those_of_vllms_own_loop(case: dict[str, Any]) -> None:
    """Two ranks of vLLM 0.32, of which one gets a request at 0 s whose KV takes 23 s, and the other decodes, or has nothing to do; a step takes 10 s."""
    engine = {"async_scheduling": case["async_scheduling"]}
    pools = (a_pool("prefill", **SYNC), a_pool("decode", ServerPlan(2, RULES, num_addresses=2), **engine))
    trace = a_trace((0.0, 80, 3), *[(10.0, 16, 12)] * case["other_decodes"])
    rows: list[dict[str, Any]] = []
    run(trace, a_plan(*pools, decider="prefix_based:non_cached_tokens=17"), rows)
    for rank, recorded in enumerate(case["ranks"]):
        steps = sorted((row["start"] - 10.0, row["end"] - 10.0, row["n"]) for row in rows if row["replica"] == 1 + rank)
        assert [list(step) for step in steps] == recorded


def test_a_rank_that_only_holds_kv_lets_the_wave_end_and_polls() -> None:
    """The prompt is computed by 10 s, and its blocks are held until 33 s: one step, one dummy, and the wave is over.

    Meanwhile its rank calls its scheduler every second: with a prompt that comes to the other rank at 20.5 s the next wave begins at 21 s, and its
    step after one more second of sleep.
    """
    pools = (a_pool("prefill", TWO_RANKS, **SYNC), a_pool("decode", **SYNC))
    found, cores = run(a_trace((0.0, 80, 1)), a_plan(*pools))
    (ranks,) = found.ranks
    assert (ranks.num_steps, ranks.num_waves, ranks.dummy_steps) == (1, 1, [0, 1])
    assert [core.metrics_before(1e9)[2] for core in cores] == [0.0] * 3
    both = a_trace((0.0, 80, 1), (20.5, 16, 1))
    found, _ = run(both, a_plan(*pools))
    assert found.handovers is not None
    assert found.handovers.prefill_end_s.tolist() == [
        10.0,
        32.0,
    ]  # called at 21 s, when the first rank's dummy has a second to sleep
    expected = naive(both, NAIVE_RANKS, None, **SYNC)
    assert [expected.pulls[row].prefill_end_s for row in (0, 1)] == [10.0, 32.0]


def test_with_a_batch_queue_the_sleep_hides_behind_the_batch_before() -> None:
    """While the other rank decodes without a break, nobody waits for the rank that waits for KV: it sleeps while the step before runs."""
    rows: list[dict[str, Any]] = []
    pools = (a_pool("prefill"), a_pool("decode", TWO_RANKS))
    run(a_trace((0.0, 16, 40), (100.0, 1600, 1)), a_plan(*pools), rows)
    ends = sorted({(row["start"], row["end"]) for row in rows if row["replica"] == 1 and row["n"]})
    busy = [(start, end) for start, end in ends if 150 < start < 300]
    assert len(busy) > 10
    assert all(end == start for (_, end), (start, _) in pairwise(busy))


def test_the_decider_hears_of_the_rank_that_holds_most() -> None:
    """A prompt that one rank of the address holds stays there, though the balancer sends it to the other, which computes it."""
    pools = (a_pool("prefill", **SYNC), a_pool("decode", ServerPlan(2, RULES), **SYNC))
    plan = a_plan(*pools, decider="prefix_based:non_cached_tokens=17")
    trace = a_trace((0.0, 80, 1), (200.0, 80, 1), (400.0, 80, 1))
    trace = Trace(
        trace.request_id, trace.arrival_s, trace.prompt_tokens, trace.output_tokens, segments=[((7, 80),)] * 3
    )
    found, _ = run(trace, plan)
    assert found.handovers is not None
    assert found.handovers.are_handed_over.tolist() == [True, False, False]
    assert found.replica.tolist() == [1, 2, 1]
    assert found.merged.requests.num_cached_tokens.tolist() == [79, 0, 64]


@pytest.mark.parametrize("policy", ["fail", "recompute"])
@pytest.mark.parametrize("is_async", [False, True])
def test_kv_that_is_kept_no_longer(policy: str, *, is_async: bool) -> None:
    """A lease of 20 s: who asks later ends with the call that hears so, with the number of its engine, or is computed there."""
    pools = (
        a_pool("prefill", TWO_RANKS, async_scheduling=is_async),
        a_pool("decode", TWO_RANKS, async_scheduling=is_async, max_num_seqs=1),
    )
    trace = a_trace((0.0, 16, 30), (0.0, 16, 30), (50.0, 80, 1), (50.0, 80, 1))
    found, cores = run(trace, a_plan(*pools, lease=Lease(20.0, is_renewed=False), kv_load_failure_policy=policy))
    requests, handed = found.merged.requests, found.handovers
    assert handed is not None
    assert handed.num_expired == handed.num_failed == 2
    failed = {2: "its KV was given up by the replica that prefilled it"} if policy == "fail" else {}
    assert requests.failed == failed | ({3: failed[2]} if failed else {})
    assert sorted(found.replica[2:]) == [2, 3]
    assert [core.metrics_before(1e9)[2] for core in cores] == [0.0] * 4
    assert np.isfinite(requests.finish_s).sum() == (2 if failed else 4)


@examples(60)
@given(fleet=servers())
def test_all_blocks_are_given_back(fleet: Servers) -> None:
    """And every request ends once, which the records see to."""
    plan = FleetPlan((fleet.planned(0), fleet.planned(1)), "round_robin", disaggregation=Disaggregation(SLOW))
    found, cores = run(fleet.trace, plan)
    assert [core.load for core in cores] == [(0, 0)] * len(cores)
    assert [core.metrics_before(1e9)[2] for core in cores] == [0.0] * len(cores)
    assert np.isfinite(found.merged.requests.finish_s).sum() + len(found.merged.requests.rejected) == len(fleet.trace)
