"""One table for all replicas: each request has one row, whoever serves it."""

import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.simulation import simulate
from sim.engine.request_source import RequestSource
from sim.engine.request_table import OUTCOME, RequestTable
from sim.workload.trace import Trace
from tests.makers import ONE_SECOND, make_config
from tests.properties import engine_examples as examples
from tests.workloads import Workload, workloads

NUM_REQUESTS = 8_000


def one_token_each(num_requests: int) -> Trace:
    tokens = np.ones(num_requests, dtype=np.int64)
    return Trace(tuple(map(str, range(num_requests))), np.arange(num_requests) / 10, tokens, tokens)


def peak_bytes(num_replicas: int) -> int:
    trace, config = one_token_each(NUM_REQUESTS), make_config(max_num_seqs=64, max_num_batched_tokens=64)
    simulate(trace.first(100), FleetPlan.alike(config, ONE_SECOND, num_replicas))  # what is made once and stays
    tracemalloc.start()
    simulate(trace, FleetPlan.alike(config, ONE_SECOND, num_replicas))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_more_replicas_need_no_more_rows() -> None:
    """Sixteen add their steps, which are counted here as generously as leaps can be, and no table of requests each."""
    one, sixteen = peak_bytes(1), peak_bytes(16)
    assert sixteen - one < 15 * NUM_REQUESTS * OUTCOME.itemsize / 2


def test_what_nobody_served_is_nan_and_nobodys() -> None:
    records = RequestTable(RequestSource(one_token_each(3), make_config())).records()
    assert np.isnan([records.first_scheduled_s, records.first_token_s, records.finish_s]).all()
    assert not records.generated_tokens.any()


@examples(40)
@given(workload=workloads(), num_replicas=st.integers(1, 3))
def test_each_replica_generates_the_tokens_of_its_rows(workload: Workload, num_replicas: int) -> None:
    """A gap between tokens is one replica's alone, so that each has as many as its requests have tokens after the first."""
    found = simulate(workload.trace, FleetPlan.alike(workload.config, workload.step_time, num_replicas))
    further = np.maximum(0, found.merged.requests.generated_tokens - 1)
    for number, part in enumerate(found.replicas):
        assert part.gaps().counts.sum() == further[found.replica == number].sum()
    assert not found.merged.requests.generated_tokens[found.replica < 0].any()
