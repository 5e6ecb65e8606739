"""What limits a run, in one object of its summary."""

from typing import Any

import numpy as np

from sim.cluster.records import ClusterRecords
from sim.deployment import Deployment
from sim.engine.records import RequestRecords
from sim.metrics.bottlenecks import limited_steps, limits_of, sampled_shapes
from sim.metrics.graph_cliffs import graph_cliffs
from sim.metrics.overload import overload
from sim.metrics.statistics import percentiles


def what_limits(deployment: Deployment, run: ClusterRecords) -> dict[str, Any]:
    """Computed from the records; docs/results.md explains the keys. Shares of time are of all replicas' together.

    With given step times there are no shares of resources, which only the roofline knows.
    """
    records, config = run.merged, deployment.config
    leaps, span_s = records.leaps, run.span_s * len(run.replicas)
    samples = sampled_shapes(leaps, config)
    found = limits_of(records, config, deployment.gpu, deployment.roofline_on, samples, span_s=span_s)
    cliffs = graph_cliffs(leaps, deployment.engine, samples, deployment.roofline_under)
    over = overload(records.requests)
    cliff_warnings = [f"CUDA-graph cliff: {cliff.text}" for cliff in cliffs if cliff.is_worth_saying]
    return {
        "busy": dict(found.busy),
        "queued": dict(found.queued),
        "steps": limited_steps(records, config),
        "p99_ttft_queue_share": p99_ttft_queue_share(records.requests),
        "graph_cliffs": [cliff._asdict() for cliff in cliffs],
        "overload": over and {**over._asdict(), "text": over.text},
        "warnings": [over.text, *cliff_warnings] if over else cliff_warnings,
        "text": str(found) if leaps.num_ran_steps else "nothing ran",
    }


def p99_ttft_queue_share(requests: RequestRecords) -> float | None:
    """The share of the slowest requests' TTFT before they were first scheduled, summed over the completed requests whose TTFT
    is at least the P99. None if nothing completed.
    """
    done = np.isfinite(requests.finish_s)
    ttft_s = (requests.first_token_s - requests.arrival_s)[done]
    if not len(ttft_s):
        return None
    queued_s = (requests.first_scheduled_s - requests.arrival_s)[done]
    slowest = ttft_s >= percentiles(ttft_s, np.ones(len(ttft_s), dtype=np.int8), (99,))[0]
    whole_s = float(ttft_s[slowest].sum())
    return float(queued_s[slowest].sum()) / whole_s if whole_s else 0.0  # step times may be given as 0
