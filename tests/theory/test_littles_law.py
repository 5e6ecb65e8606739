"""The timeline of queue lengths and the times of requests are two views of one run."""

import numpy as np
import pytest

from tests.engines import Engine
from tests.theory.queues import serve


@pytest.mark.parametrize("max_num_seqs", [1, 3, 64])
def test_requests_in_the_system_are_rate_times_time_in_it(engine: Engine, max_num_seqs: int) -> None:
    """L = rate x W, exactly, once the time before a step first sees an arrival is counted with the queue."""
    service_s = np.random.default_rng(4).integers(1, 30, 2_000)
    queue = serve(engine, 0.9 * min(max_num_seqs, 8) / 15, service_s, max_num_seqs=max_num_seqs)
    steps, requests = queue.records.steps, queue.records.requests
    seen_s = steps.start_s[np.searchsorted(steps.start_s, requests.arrival_s)]
    in_system = ((steps.end_s - steps.start_s) * (steps.num_running + steps.num_waiting)).sum()
    unseen = (seen_s - requests.arrival_s).sum()
    horizon = steps.end_s[-1] - requests.arrival_s[0]
    length = (in_system + unseen) / horizon
    assert length == pytest.approx(len(requests) / horizon * (requests.finish_s - requests.arrival_s).mean())
