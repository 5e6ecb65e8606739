"""How far a run keeps its service-level objectives."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from sim.engine.records import Records, RequestRecords
from sim.metrics.latencies import (
    end_to_end_s,
    is_completed,
    latencies,
    time_per_output_token_s,
    time_to_first_token_s,
)
from sim.metrics.statistics import Samples, percentiles, percentiles_of
from sim.specs.slo import Latency, Slo
from sim.units import MS


def slo_figures(slos: Sequence[Slo], records: Records, duration_s: float | None) -> dict[str, Any]:
    """Each limited percentile, over the requests served and over all; where requests can be judged, how many are good."""
    found: dict[str, Any] = {slo.key: measured_ms(slo, records) for slo in slos}
    found |= {slo.judged_key: judged_ms(slo, records) for slo in slos}
    if slos and all(slo.latency != "itl" for slo in slos):
        good = num_good(slos, records.requests)
        found["request_goodput"] = good / duration_s if duration_s else None
        found["slo_attainment"] = good / len(records.requests)
    return found


def measured_ms(slo: Slo, records: Records) -> float | None:
    """That percentile in milliseconds, over the requests that were served; None where nothing was measured."""
    found_s = percentiles_of(_samples(slo.latency, records), (slo.percentile,))
    return found_s[0] / MS if found_s else None


def judged_ms(slo: Slo, records: Records) -> float | None:
    """That percentile in milliseconds with requests that were rejected or failed as infinitely late.

    None if it is infinite or nothing was measured. Such a request counts as having the average number of gaps between
    tokens.
    """
    num_missed, num_requests = num_unserved(records.requests), len(records.requests)
    if not num_missed:
        return measured_ms(slo, records)
    samples = _samples(slo.latency, records)
    values, counts = samples.part(0, len(samples))
    if slo.latency == "itl" and num_missed < num_requests:
        num_missed = max(1, round(int(counts.sum()) * num_missed / (num_requests - num_missed)))
    (found_s,) = percentiles(
        np.append(values, np.inf), np.append(counts.astype(np.int64), num_missed), (slo.percentile,)
    )
    return found_s / MS if math.isfinite(found_s) else None


def _samples(latency: Latency, records: Records) -> Samples:
    return records.gaps if latency == "itl" else cast("Samples", getattr(latencies(records.requests), latency))


def num_good(slos: Iterable[Slo], requests: RequestRecords) -> int:
    """Completed requests that are each within every limit, as `vllm bench serve --goodput` counts them.

    A request without a second token has no time per token that could be too long; a limit on gaps is not allowed here.
    """
    good = is_completed(requests)
    for slo in slos:
        good &= ~is_over(slo, requests)
    return int(good.sum())


def is_over(slo: Slo, requests: RequestRecords) -> NDArray[np.bool_]:
    """Which requests exceed the limit: all that were not served, and of the others none that has no such latency.

    Gaps between tokens are not kept by request.
    """
    return ~is_completed(requests) | _is_late(slo, requests)


def _is_late(slo: Slo, requests: RequestRecords) -> NDArray[np.bool_]:
    of = {"ttft": time_to_first_token_s, "tpot": time_per_output_token_s, "e2el": end_to_end_s}[slo.latency]
    return of(requests) > slo.limit_s


def num_unserved(requests: RequestRecords) -> int:
    """Requests that were rejected or failed."""
    return int(np.count_nonzero(~is_completed(requests)))
