"""Service-level objectives: limits on percentiles of the latencies of `vllm bench serve`, and how far a run keeps them."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np
from numpy.typing import NDArray

from sim.engine.records import Records, RequestRecords
from sim.errors import ConfigError, nearest
from sim.inputs import LARGEST, SMALLEST, is_sane
from sim.metrics.latencies import (
    end_to_end_s,
    is_completed,
    latencies,
    time_per_output_token_s,
    time_to_first_token_s,
)
from sim.metrics.statistics import Samples, percentiles, percentiles_of
from sim.units import MS

Latency = Literal["ttft", "tpot", "itl", "e2el"]
LATENCIES: tuple[str, ...] = get_args(Latency)
_PATTERN = re.compile(
    r"(?P<latency>[a-z0-9]+)_p(?P<percentile>\d{1,3}(?:\.\d{1,9})?)\s*<?=\s*(?P<limit>\d+(?:\.\d+)?)\s*(?P<unit>ms|s)"
)


class Slo(NamedTuple):
    """The `percentile` of a latency must not exceed `limit_s`; a request that is not served is infinitely late."""

    latency: Latency
    percentile: float
    limit_s: float

    def __str__(self) -> str:
        return f"{self.name}={self.limit_ms:g}ms"

    @property
    def limit_ms(self) -> float:
        return self.limit_s / MS

    @property
    def name(self) -> str:
        """As on the command line: ttft_p99."""
        return f"{self.latency}_p{self.percentile:g}"

    @property
    def key(self) -> str:
        """As in the metrics, over the requests that were served: p99_ttft_ms."""
        return f"p{self.percentile:g}_{self.latency}_ms"

    @property
    def judged_key(self) -> str:
        """As in the metrics, over all requests, which is what the limit holds for: slo_ttft_p99_ms."""
        return f"slo_{self.name}_ms"


def parse_slo(text: str) -> Slo:
    """`ttft_p99=500ms` or `e2el_p99.9=2s`. Raises ConfigError for anything else."""
    found = _PATTERN.fullmatch(text.strip().lower())
    if not found:
        raise ConfigError(
            f"--slo must look like ttft_p99=500ms: one of {', '.join(LATENCIES)}, a percentile and a limit in ms or s; got {text!r}."
        )
    latency, percentile = found["latency"], float(found["percentile"])
    if latency not in LATENCIES:
        raise ConfigError(
            f"--slo {text}: the latency must be one of {', '.join(LATENCIES)}, got {latency!r}.{nearest(latency, LATENCIES)}"
        )
    if percentile > 100:
        raise ConfigError(f"--slo {text}: a percentile is from 0 to 100, got {percentile:g}.")
    limit_s = float(found["limit"]) * (MS if found["unit"] == "ms" else 1.0)
    if not (limit_s > 0 and is_sane(limit_s)):
        raise ConfigError(f"--slo {text[:40]}: the limit must be above 0, and from {SMALLEST:g} to {LARGEST:g} s.")
    return Slo(cast("Latency", latency), percentile, limit_s)


def parse_slos(texts: Iterable[str]) -> tuple[Slo, ...]:
    """Each percentile once. Raises ConfigError where one is limited twice."""
    slos = tuple(map(parse_slo, texts))
    names = [slo.name for slo in slos]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"--slo limits {name} twice; leave one of them out.")
    return slos


def judged_by_request(slos: Sequence[Slo]) -> tuple[Slo, ...]:
    """The same limits. Raises ConfigError for a limit that cannot be applied to single requests."""
    for slo in slos:
        if slo.latency == "itl":
            raise ConfigError(
                f"--slo {slo}: goodput judges single requests, whose gaps between tokens are not kept; limit tpot instead."
            )
    return tuple(slos)


def limits_json(slos: Iterable[Slo]) -> dict[str, float]:
    """The limits as answers have them: milliseconds by name."""
    return {slo.name: slo.limit_ms for slo in slos}


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
