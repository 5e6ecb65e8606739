"""What each replica of a fleet did, beside the fleet's own figures."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sim.cluster.records import ClusterRecords
from sim.engine.records import EngineRecords, Ints, RequestRecords
from sim.metrics.latencies import is_completed
from sim.metrics.summary import kv_cache_usage


def replica_figures(records: ClusterRecords, num_gpu_blocks: Sequence[int]) -> list[dict[str, Any]]:
    """An object a replica, which has so many blocks; means are over the fleet's whole time, in which it may have been idle."""
    return [
        {
            **_served(*records.served(number), number),
            **_engine_figures(part, records.span_s, num_gpu_blocks[number]),
        }
        for number, part in enumerate(records.replicas)
    ]


def _served(requests: RequestRecords, replica: Ints, number: int) -> dict[str, int]:
    sent_here = replica == number
    done_here = is_completed(requests) & sent_here
    return {
        "requests": int(sent_here.sum()),
        "completed": int(done_here.sum()),
        "total_output_tokens": int(requests.generated_tokens[done_here].sum()),
    }


def _engine_figures(part: EngineRecords, span_s: float, num_gpu_blocks: int) -> dict[str, Any]:
    leaps = part.leaps
    hit_rate = part.prefix_cache_hits / part.prefix_cache_queries if part.prefix_cache_queries else None
    if not len(leaps):
        return {"prefix_cache_hit_rate": hit_rate} | dict(zip(FIGURES, (0.0, 0.0, 0, 0.0, 0.0), strict=True))
    figures = (
        leaps.busy_s / span_s,
        leaps.sum_of(lambda some: some.num_waiting * (some.durations_s / span_s)),
        max(int(some.num_waiting.max()) for some in leaps.parts()),
        leaps.sum_of(lambda some: kv_cache_usage(some.num_free_blocks, num_gpu_blocks) * (some.durations_s / span_s)),
        float(kv_cache_usage(np.asarray(leaps.fewest_free_blocks), num_gpu_blocks)),
    )
    return {"prefix_cache_hit_rate": hit_rate} | dict(zip(FIGURES, figures, strict=True))


FIGURES = ("gpu_busy_fraction", "mean_num_waiting", "max_num_waiting", "mean_kv_cache_usage", "max_kv_cache_usage")
