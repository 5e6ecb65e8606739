"""The figures of each stage of a trace, over its own requests."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from sim.engine.records import RequestRecords
from sim.metrics.latencies import latencies
from sim.metrics.statistics import statistics_of
from sim.metrics.summary import in_ms, totals
from sim.workload.trace import Trace


def stage_figures(trace: Trace, requests: RequestRecords) -> list[dict[str, Any]]:
    """An object a stage, under the names of the whole run's: `request_rate` is offered, `max_concurrency` what all lines together let through,
    `duration` ends with its last request.
    """
    assert trace.stage is not None, "a trace with stages"
    first_rows = np.flatnonzero(np.diff(trace.stage, prepend=-1)).tolist()
    return [
        {
            "stage": int(trace.stage[first]),
            "request_rate": trace.part(first, end).request_rate,
            "max_concurrency": most_in_flight(trace.part(first, end)),
            **_served(requests.only(np.arange(first, end))),
        }
        for first, end in pairwise([*first_rows, len(trace)])
    ]


def most_in_flight(stage: Trace) -> int | None:
    """None where the trace has no limits."""
    if stage.max_concurrency is None:
        return None
    return int(stage.max_concurrency[np.unique(stage.lines, return_index=True)[1]].sum())


def _served(requests: RequestRecords) -> dict[str, Any]:
    return {**totals(requests), **in_ms(dict(_latencies(requests)))}


def _latencies(requests: RequestRecords) -> Iterator[tuple[str, Any]]:
    """Gaps between tokens are not kept by request, so that stages have no `itl`."""
    of_requests = latencies(requests)
    for name in ("ttft", "tpot", "e2el"):
        yield name, statistics_of(getattr(of_requests, name))
