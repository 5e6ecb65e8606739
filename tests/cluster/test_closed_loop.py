"""A closed loop keeps as many requests in the engine as it has clients, and each waits for its predecessor."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.clients import Clients
from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.simulation import simulate as run
from sim.cluster.users import Users
from sim.engine.config import KVGroup
from sim.engine.records import Records
from sim.steptime.linear import LinearStepTime
from sim.workload.trace import Trace
from tests.configs import scheduler_config
from tests.engine.test_engines_agree import assert_same_records
from tests.engines import simulate
from tests.makers import ONE_SECOND, Ask, make_config, make_trace
from tests.properties import engine_examples as examples
from tests.workloads import Workload, workloads

STEP_TIME = LinearStepTime(0.01, 0.0001, 0.0)


def serve(
    prompts: list[int], outputs: list[int], concurrency: int, *, delay_s: float = 0.0, is_async: bool = True
) -> Records:
    trace = Trace(tuple(map(str, range(len(prompts)))), np.zeros(len(prompts)), np.array(prompts), np.array(outputs))
    config = scheduler_config(
        max_num_seqs=64, max_num_batched_tokens=256, num_gpu_blocks=5000, async_scheduling=is_async
    )
    return run(trace, FleetPlan.alike(config, STEP_TIME), clients=Clients(Users(concurrency, delay_s))).merged


def test_one_client_sends_one_after_the_other() -> None:
    """Each request arrives when the last has ended, and the delay has passed."""
    found = serve([10, 20, 30], [5, 6, 7], 1, delay_s=0.002).requests
    assert found.arrival_s.tolist() == pytest.approx([0.0, *(found.finish_s[:2] + 0.002)])


@pytest.mark.parametrize("is_async", [True, False])
def test_an_answer_brings_the_next_request_while_others_run(is_async: bool) -> None:
    """A goes on for 60 tokens; C arrives when B has ended, and has begun by the end of the step that runs then."""
    found = serve([100, 10, 10], [60, 5, 5], 2, is_async=is_async).requests
    assert found.arrival_s[2] == found.finish_s[1]
    assert found.first_scheduled_s[2] - found.arrival_s[2] < 0.02
    assert found.finish_s[2] < found.finish_s[0]


def test_requests_that_never_fit_hold_nobody_up() -> None:
    """A prompt beyond max_model_len is turned away; its client sends the next."""
    found = serve([10, 2000, 30], [5, 6, 7], 1).requests
    assert found.rejected[1] is not None
    assert found.arrival_s[2] == pytest.approx(found.finish_s[0])


@examples(60)
@given(workload=workloads())
def test_as_many_clients_as_requests_are_a_burst(workload: Workload) -> None:
    """All arrive at once, with shared prompts, windows and preemption: whatever is recorded is what a trace leaves."""
    trace, config, step_time = workload
    trace = replace(trace, arrival_s=np.zeros(len(trace)))
    found = run(trace, FleetPlan.alike(config, step_time), clients=Clients(Users(len(trace)))).merged
    assert_same_records(found, simulate(trace, config, step_time))


def test_an_unexpected_preemption_starts_the_loop_again() -> None:
    """What a window has passed and a preempted request may ask for was not kept: clients send all once more."""
    trace = make_trace([Ask("A", 30, 40), Ask("B", 30, 40)])
    config = make_config(num_gpu_blocks=40, kv_groups=(KVGroup(), KVGroup(window=8)), max_model_len=100)
    found = run(trace, FleetPlan.alike(config, ONE_SECOND), clients=Clients(Users(2))).merged
    assert found.requests.num_preemptions.sum() > 0
    assert_same_records(found, simulate(trace, config, ONE_SECOND))


@examples(40)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 300), st.integers(1, 40)), min_size=1, max_size=30),
    concurrency=st.integers(1, 8),
    delay_s=st.sampled_from([0.0, 0.0005, 0.1]),
    is_async=st.booleans(),
)
def test_never_more_than_its_clients(
    lengths: list[tuple[int, int]], concurrency: int, delay_s: float, *, is_async: bool
) -> None:
    """All requests end; the n-th arrival is the delay after the (n - clients)-th end; at most the clients' are in the engine."""
    prompts, outputs = map(list, zip(*lengths, strict=True))
    found = serve(prompts, outputs, concurrency, delay_s=delay_s, is_async=is_async).requests
    assert found.generated_tokens.tolist() == outputs
    ends, later = np.sort(found.finish_s), np.sort(found.arrival_s)[concurrency:]
    assert later == pytest.approx(ends[: len(later)] + delay_s)
    for now in found.arrival_s:
        assert ((found.arrival_s <= now) & (found.finish_s > now + 1e-12)).sum() <= concurrency
