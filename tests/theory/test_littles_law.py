"""The timeline of queue lengths and the times of requests are two views of one run."""

import numpy as np
import pytest

from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.routers.table import ROUTERS
from sim.cluster.simulation import simulate
from sim.engine.records import EngineRecords, RequestRecords
from tests.engines import Engine
from tests.makers import ONE_SECOND, Ask, make_config, make_trace
from tests.theory.queues import serve


def assert_length_is_rate_times_time(engine: EngineRecords, requests: RequestRecords) -> None:
    """L = rate x W, exactly, once the time before a step first sees an arrival is counted with the queue."""
    steps = engine.steps
    seen_s = steps.start_s[np.searchsorted(steps.start_s, requests.arrival_s)]
    in_system = ((steps.end_s - steps.start_s) * (steps.num_running + steps.num_waiting)).sum()
    unseen = (seen_s - requests.arrival_s).sum()
    horizon = steps.end_s[-1] - requests.arrival_s[0]
    length = (in_system + unseen) / horizon
    assert length == pytest.approx(len(requests) / horizon * (requests.finish_s - requests.arrival_s).mean())


@pytest.mark.parametrize("max_num_seqs", [1, 3, 64])
def test_requests_in_the_system_are_rate_times_time_in_it(engine: Engine, max_num_seqs: int) -> None:
    service_s = np.random.default_rng(4).integers(1, 30, 2_000)
    queue = serve(engine, 0.9 * min(max_num_seqs, 8) / 15, service_s, max_num_seqs=max_num_seqs)
    assert_length_is_rate_times_time(queue.records, queue.records.requests)


@pytest.mark.parametrize("router", [*sorted(ROUTERS.keys() - {"prompt_length"}), "prompt_length:threshold=20"])
def test_so_they_are_at_each_replica_behind_a_router(router: str) -> None:
    """Prompts begin as others did, so that those that look for prefixes find some."""
    rng = np.random.default_rng(8)
    arrivals_s = rng.exponential(3.0, 400).cumsum()
    asks = [
        Ask(
            f"r{row}",
            ((int(rng.integers(5)), 16), (100 + row, int(rng.integers(1, 9)))),
            int(rng.integers(1, 40)),
            at=float(at_s),
        )
        for row, at_s in enumerate(arrivals_s)
    ]
    plan = FleetPlan.alike(make_config(max_num_seqs=3), ONE_SECOND, 3, router)
    found = simulate(make_trace(asks), plan)
    assert set(found.replica) == {0, 1, 2}
    for number, records in enumerate(found.replicas):
        assert_length_is_rate_times_time(records, found.merged.requests.only(np.flatnonzero(found.replica == number)))
