"""How far each class of clients is served within its own limits."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sim.engine.records import Records
from sim.metrics.latencies import is_completed
from sim.metrics.slo import judged_ms, num_good, slo_figures
from sim.specs.slo import Slo, SloClass, limits_json
from sim.workload.trace import Trace


def limit_figures(trace: Trace, slos: Sequence[Slo], records: Records, duration_s: float | None) -> dict[str, Any]:
    """What a run made of its limits: `slos`, or those of the trace's classes, of which one without any has `slos`.

    Of classes `request_goodput` and `slo_attainment` count each request by its own class's limits; `slo_classes` has the same of each.
    """
    if trace.slo_class is None:
        return slo_figures(slos, records, duration_s)
    classes = [SloClass(one.name, one.slos or tuple(slos)) for one in trace.slo_classes]
    parts = [
        replace(records, requests=records.requests.only(np.flatnonzero(trace.slo_class == number)))
        for number in range(len(classes))
    ]
    good = [num_good(one.slos, part.requests) for one, part in zip(classes, parts, strict=True)]
    return {
        "request_goodput": sum(good) / duration_s if duration_s else None,
        "slo_attainment": sum(good) / len(trace),
        "slo_classes": [
            _of_class(one, part, count, duration_s) for one, part, count in zip(classes, parts, good, strict=True)
        ],
    }


def _of_class(one: SloClass, records: Records, num_good: int, duration_s: float | None) -> dict[str, Any]:
    """Without any limit a request is within them where it is served."""
    arrived = len(records.requests)
    return {
        "class": one.name,
        "slo": limits_json(one.slos),
        "arrived": arrived,
        "completed": int(np.count_nonzero(is_completed(records.requests))),
        **{slo.judged_key: judged_ms(slo, records) for slo in one.slos},
        "request_goodput": num_good / duration_s if duration_s else None,
        "slo_attainment": num_good / arrived if arrived else None,
    }
