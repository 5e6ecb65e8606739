"""What limits a run, in one object of its summary."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from sim.engine.config import SchedulerConfig
from sim.engine.records import Records, RequestRecords
from sim.metrics.bottlenecks import limited_steps, limits_of, sampled_shapes
from sim.metrics.graph_cliffs import graph_cliffs
from sim.metrics.statistics import percentiles
from sim.specs.engine import ResolvedEngine
from sim.specs.hardware import HardwareProfile
from sim.steptime.protocol import StepTimeModel

StepTimeOn = Callable[[HardwareProfile, ResolvedEngine], StepTimeModel]


def what_limits(
    records: Records,
    config: SchedulerConfig,
    gpu: HardwareProfile,
    engine: ResolvedEngine,
    step_time_on: StepTimeOn | None,
) -> dict[str, Any]:
    """All of it told from the records; docs/results.md explains the keys.

    `step_time_on` is the roofline on a GPU and under engine arguments; None where step times are given, and then nothing
    is said about resources.
    """
    leaps = records.leaps
    roofline_on = None if step_time_on is None else lambda other: step_time_on(other, engine)
    samples = sampled_shapes(leaps, config)
    found = limits_of(records, config, gpu, roofline_on, samples, span_s=_span_s(records))
    timed_under = None if step_time_on is None else partial(step_time_on, gpu)
    cliffs = graph_cliffs(leaps, engine, samples, timed_under)
    return {
        "busy": dict(found.busy),
        "queued": dict(found.queued),
        "steps": limited_steps(records, config),
        "p99_ttft_queue_share": p99_ttft_queue_share(records.requests),
        "graph_cliffs": [cliff._asdict() for cliff in cliffs],
        "warnings": [f"CUDA-graph cliff: {cliff.text}" for cliff in cliffs if cliff.is_worth_saying],
        "text": str(found) if leaps.num_ran_steps else "nothing ran",
    }


def p99_ttft_queue_share(requests: RequestRecords) -> float | None:
    """How much of the slowest requests' TTFT they spent waiting to be scheduled first: those completed whose TTFT is at
    least the P99, summed. None where nothing completed.
    """
    done = np.isfinite(requests.finish_s)
    ttft_s = (requests.first_token_s - requests.arrival_s)[done]
    if not len(ttft_s):
        return None
    queued_s = (requests.first_scheduled_s - requests.arrival_s)[done]
    slowest = ttft_s >= percentiles(ttft_s, np.ones(len(ttft_s), dtype=np.int64), (99,))[0]
    whole_s = float(ttft_s[slowest].sum())
    return float(queued_s[slowest].sum()) / whole_s if whole_s else 0.0  # steps that are said to take no time


def _span_s(records: Records) -> float:
    """From the first arrival to the end of the last step."""
    leaps = records.leaps
    return float(leaps.step_end_s[-1] - records.requests.arrival_s[0]) if len(leaps) else 0.0
