"""Replicas that serve one request at a time, each in one step as long as its prompt: servers in parallel."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.simulation import simulate
from sim.steptime.linear import LinearStepTime
from sim.workload.trace import Trace
from tests.makers import make_config
from tests.theory.queues import Floats, Ints

TOKENS_PER_S = 1000
"""Prompts are geometric with this mean: services of 1 s on average, exponential but for a thousandth."""
STEP_TIME = LinearStepTime(base_s=0.0, per_token_s=1 / TOKENS_PER_S, per_context_token_s=0.0)
CONFIG = make_config(
    max_num_seqs=1,
    max_num_batched_tokens=100_000,
    max_model_len=100_000,
    block_size=100_000,
    enable_prefix_caching=False,
)


@dataclass(frozen=True)
class Servers:
    """Requests in order of arrival, those that found the fleet cold left out, and the replica that served each."""

    arrival_s: Floats
    start_s: Floats
    finish_s: Floats
    replica: Ints

    @cached_property
    def wait_s(self) -> Floats:
        return self.start_s - self.arrival_s

    def found_busy(self, replica: int) -> Floats:
        """1.0 for each request that arrived while that replica served an earlier one, else 0.0."""
        is_its = self.replica == replica
        num_started = np.searchsorted(self.start_s[is_its], self.arrival_s)
        num_finished = np.searchsorted(self.finish_s[is_its], self.arrival_s)
        return (num_started > num_finished).astype(np.float64)


def serve(router: str, num_replicas: int, rho: float, *, num_requests: int = 30_000) -> Servers:
    """Poisson arrivals and exponential services, the same for every router, at `rho` of what all replicas can do."""
    rng = np.random.default_rng(11)
    trace = Trace(
        request_id=tuple(map(str, range(num_requests))),
        arrival_s=rng.exponential(1 / (rho * num_replicas), num_requests).cumsum(),
        prompt_tokens=rng.geometric(1 / TOKENS_PER_S, num_requests),
        output_tokens=np.ones(num_requests, dtype=np.int64),
    )
    found = simulate(trace, FleetPlan.alike(CONFIG, STEP_TIME, num_replicas, router), seed=3)
    requests, warm = found.merged.requests, slice(num_requests // 20, None)
    return Servers(
        requests.arrival_s[warm], requests.first_scheduled_s[warm], requests.finish_s[warm], found.replica[warm]
    )
