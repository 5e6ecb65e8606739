"""How much later than the trace says requests were sent, where they waited for answers."""

import numpy as np

from sim.engine.records import RequestRecords
from sim.metrics.statistics import statistics
from sim.workload.trace import Trace


def sent_late(trace: Trace, requests: RequestRecords) -> dict[str, float | int | None]:
    """The number of late requests, and statistics in seconds over all requests that were sent."""
    was_sent = np.ones(len(requests), dtype=np.bool_)
    was_sent[list(requests.rejected)] = False
    late_s = (requests.arrival_s - trace.arrival_s)[was_sent]
    found = statistics(late_s)
    return {
        "requests": int((late_s > 0).sum()),
        "mean_s": found.mean,
        "p99_s": found.p99,
        "max_s": float(late_s.max()) if len(late_s) else None,
    }
