"""Users who think are the machines of the repairman: M/M/1//N (Kleinrock, Queueing Systems I, ch. 3.8)."""

import math

import numpy as np
import pytest

from sim.cluster.clients import Clients
from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.simulation import simulate
from sim.cluster.users import Users
from sim.workload.trace import Trace
from tests.makers import ONE_SECOND, make_config

NUM_REQUESTS = 4_000
MEAN_SERVICE_S = 200.0


@pytest.mark.parametrize(("num_users", "think_time_s"), [(1, 200.0), (4, 600.0), (10, 1000.0)])
def test_throughput_is_that_of_the_repairman(num_users: int, think_time_s: float) -> None:
    """X = (1 - p0) / S, and by Little's law the response time is N / X - Z."""
    lengths = np.ceil(np.random.default_rng(5).exponential(MEAN_SERVICE_S, NUM_REQUESTS)).astype(np.int64)
    service_s = float(lengths.mean())
    trace = Trace(
        tuple(map(str, range(NUM_REQUESTS))), np.zeros(NUM_REQUESTS), np.ones(NUM_REQUESTS, dtype=np.int64), lengths
    )
    config = make_config(max_num_seqs=1, block_size=1000, max_model_len=10_000)
    users = Users(num_users, think_time_s, "exponential", seed=3)
    found = simulate(trace, FleetPlan.alike(config, ONE_SECOND), clients=Clients(users)).merged.requests
    load = service_s / think_time_s
    ways = [math.perm(num_users, waiting) * load**waiting for waiting in range(num_users + 1)]
    throughput = (1 - ways[0] / sum(ways)) / service_s
    assert NUM_REQUESTS / found.finish_s.max() == pytest.approx(throughput, rel=4 / NUM_REQUESTS**0.5)
    response_s = float((found.finish_s - found.arrival_s).mean())
    assert response_s == pytest.approx(num_users / throughput - think_time_s, rel=8 / NUM_REQUESTS**0.5)
