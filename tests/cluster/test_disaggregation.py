"""Prefill here, decode there: each request's way through both pools."""

from dataclasses import replace

import numpy as np

from sim.cluster import fleet_plan
from sim.cluster.clients import Clients
from sim.cluster.network import NetworkCosts
from sim.cluster.simulation import simulate
from sim.engine.walking.modes import Modes
from sim.memory.kv_cache import KVGroup
from sim.memory.transfers import ReplicaKV
from sim.specs.kv_transfer import OffloadConfig
from sim.workload.trace import Trace
from tests.configs import scheduler_config
from tests.conformance.case import RecordedStepTime
from tests.reference.disaggregation import Pool, simulate_disaggregated

BLOCK_BYTES = 8
STEP = RecordedStepTime(base_ns=10, per_token_ns=0, per_ctx_ns=0)
KV = ReplicaKV((KVGroup("full", None, 1, 16, BLOCK_BYTES),), 1)


def a_pool(num_replicas: int = 1, **arguments: object) -> Pool:
    return Pool(scheduler_config(async_scheduling=False, **arguments), STEP, KV, num_replicas)


def a_trace(*rows: tuple[float, int, int]) -> Trace:
    arrival_s, prompt_tokens, output_tokens = zip(*rows, strict=True)
    return Trace(
        tuple(f"r{row}" for row in range(len(rows))),
        np.array(arrival_s, dtype=np.float64),
        np.array(prompt_tokens),
        np.array(output_tokens),
    )


def test_a_lone_request_is_prefilled_pulled_and_decoded() -> None:
    """A step of 10 s; five blocks of 8 bytes at 2 a second behind 3 s of latency; the last prompt token once more, then two."""
    costs = NetworkCosts(bytes_per_s=2.0, latency_s=3.0, descriptor_s=0.0)
    served = simulate_disaggregated(a_trace((0.0, 80, 3)), a_pool(), a_pool(), costs, idle_sleep_s=1.0)
    (request,), pull = served.requests, served.pulls[0]
    assert (pull.prefill_end_s, pull.start_s, pull.end_s, pull.num_bytes) == (10.0, 10.0, 33.0, 40)
    assert request.first_token_s == 44.0  # heard of at 33 s, scheduled at the next call a second later
    assert request.finish_s == 64.0


def test_a_prompt_that_the_prefill_side_has_on_its_cpu_is_loaded_there() -> None:
    """The GPU has room for one prompt of five blocks; the first comes back from the CPU, three blocks in 6 s (its last is computed again), before 10 s of step."""
    costs, kv = NetworkCosts(bytes_per_s=1000.0, latency_s=0.0, descriptor_s=0.0), KV
    tier = OffloadConfig(20, 0, 2, 0, 0, reports_at_start=True)
    trace = a_trace((0.0, 80, 1), (200.0, 80, 1), (400.0, 80, 1))
    trace = replace(trace, segments=(((1, 80),), ((2, 80),), ((1, 80),)))
    prefill_end_s = {}
    for cpu in (None, tier):
        prompts = a_pool(num_gpu_blocks=7, enable_prefix_caching=True)
        pools = (
            fleet_plan.Pool(prompts.config, STEP, role="prefill", kv=kv, modes=Modes(offload=cpu)),
            fleet_plan.Pool(a_pool(enable_prefix_caching=False).config, STEP, role="decode", kv=kv),
        )
        plan = fleet_plan.FleetPlan(
            pools, "round_robin", disaggregation=fleet_plan.Disaggregation(costs, "always", "round_robin")
        )
        found = simulate(trace, plan)
        assert found.handovers is not None
        prefill_end_s[cpu] = found.handovers.prefill_end_s.round(2).tolist()
    assert prefill_end_s[None] == [10.0, 210.0, 410.0]
    assert prefill_end_s[tier] == [10.0, 210.0, 418.0]


def test_a_prompt_comes_to_its_pool_when_its_client_sends_it() -> None:
    """One request at a time: of a step of 10 s each, though the trace has both at 0."""
    costs = NetworkCosts(bytes_per_s=1000.0, latency_s=0.0, descriptor_s=0.0)
    config = a_pool(enable_prefix_caching=False).config
    pools = [fleet_plan.Pool(config, STEP, role=role, kv=KV) for role in ("prefill", "decode")]
    plan = fleet_plan.FleetPlan(
        tuple(pools), "round_robin", disaggregation=fleet_plan.Disaggregation(costs, "always", "round_robin")
    )
    found = simulate(a_trace((0.0, 80, 2), (0.0, 80, 2)), plan, clients=Clients(max_concurrency=1))
    whole, (prompts, _) = found.merged.requests, found.pools
    assert whole.arrival_s[1] == whole.finish_s[0] > 0
    assert prompts.requests.arrival_s.tolist() == whole.arrival_s.tolist()
    np.testing.assert_allclose(prompts.requests.first_token_s - prompts.requests.arrival_s, 10.0)


def test_a_prompt_with_little_to_compute_stays() -> None:
    """Below the threshold of uncached tokens nothing moves."""
    costs = NetworkCosts(bytes_per_s=2.0, latency_s=3.0, descriptor_s=0.0)
    served = simulate_disaggregated(a_trace((0.0, 80, 1)), a_pool(), a_pool(), costs, least_uncached_tokens=81)
    assert served.pulls == {}
    assert served.requests[0].finish_s == 10.0


def test_what_no_decode_pool_holds_is_rejected() -> None:
    """40 tokens fit in two blocks of 32 at the prefill pool, not in two of 16 where they would be answered."""
    pools = (
        fleet_plan.Pool(scheduler_config(num_gpu_blocks=3, block_size=32), STEP, role="prefill", kv=KV),
        fleet_plan.Pool(scheduler_config(num_gpu_blocks=3, block_size=16), STEP, role="decode", kv=KV),
    )
    handing = fleet_plan.Disaggregation(NetworkCosts(1.0, 0.0, 0.0), "always", "round_robin")
    found = simulate(a_trace((0.0, 40, 1)), fleet_plan.FleetPlan(pools, "round_robin", disaggregation=handing))
    assert found.merged.requests.rejected == {
        0: "40 tokens of prompt and output need more than the 2 KV blocks there are"
    }
