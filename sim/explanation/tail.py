"""Why P99 is what it is: the slowest hundredth of requests, and where their time went."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sim.api import Result
from sim.engine.records import Ints, RequestRecords
from sim.explanation.parts import FRONT_END, PARTS, Span, spans, total
from sim.explanation.passes import Watched
from sim.explanation.replica_time import ReplicaTime
from sim.metrics.latencies import end_to_end_s, is_completed, time_per_output_token_s, time_to_first_token_s
from sim.units import MS

LATENCIES = {"ttft": time_to_first_token_s, "tpot": time_per_output_token_s, "e2el": end_to_end_s}
MOST = 200  # requests of each latency whose steps are looked at; of more, so many at equal distances by latency


class Slowest(NamedTuple):
    """Of one latency the requests at or above its P99, how long theirs is in the mean, and its parts, which add up to that.

    `num_requests` is of how many, `num_explained` how many of these were looked at.
    """

    p99_ms: float
    num_requests: int
    num_explained: int
    mean_ms: float
    parts_ms: Mapping[str, float]

    @property
    def largest(self) -> str | None:
        """The part that is most of it."""
        return max(self.parts_ms, key=lambda name: self.parts_ms[name], default=None)


def slowest_rows(requests: RequestRecords) -> dict[str, tuple[float, Ints]]:
    """The P99 in seconds of each latency that any request has, and the rows at or above it, slowest first."""
    found = {}
    done = is_completed(requests)
    for name, of in LATENCIES.items():
        seconds = np.where(done, of(requests), np.nan)
        if np.isfinite(seconds).any():
            p99_s = float(np.nanpercentile(seconds, 99))
            rows = np.flatnonzero(seconds >= p99_s)
            found[name] = p99_s, rows[np.argsort(-seconds[rows], kind="stable")]
    return found


def looked_at(rows: Ints) -> Ints:
    """All, or MOST of them."""
    return rows[np.unique(np.linspace(0, len(rows) - 1, min(MOST, len(rows))).round().astype(np.int64))]


def request_spans(result: Result, row: int, life: Watched, replicas: Sequence[ReplicaTime]) -> list[Span]:
    """Where the time of a completed request went."""
    requests = result.records.requests
    arrival_s, first_s, finish_s = (
        float(column[row]) for column in (requests.arrival_s, requests.first_token_s, requests.finish_s)
    )
    return list(spans(life, arrival_s, first_s, finish_s, int(requests.prompt_tokens[row]), replicas))


def tail(
    result: Result,
    slowest: Mapping[str, tuple[float, Ints]],
    lives: Mapping[int, Watched],
    replicas: Sequence[ReplicaTime],
) -> dict[str, Slowest]:
    """By latency; `lives` has all that `looked_at` chooses."""
    found = {}
    for name, (p99_s, rows) in slowest.items():
        some = looked_at(rows).tolist()
        parts = [_parts_s(result, name, row, request_spans(result, row, lives[row], replicas)) for row in some]
        means = {part: sum(one.get(part, 0.0) for one in parts) / len(parts) / MS for part in PARTS}
        shown = {part: value for part, value in means.items() if value > 0}
        found[name] = Slowest(p99_s / MS, len(rows), len(some), sum(shown.values()), shown)
    return found


def front_end_s(result: Result, row: int) -> dict[str, float]:
    """By how much its client sees the tokens of a request later, by the client's clock; nothing by the engine's."""
    seen_s, made_s = (float(run.merged.requests.first_token_s[row]) for run in (result.seen, result.run))
    return {FRONT_END: seen_s - made_s} if seen_s > made_s else {}


def _parts_s(result: Result, latency: str, row: int, found: Sequence[Span]) -> dict[str, float]:
    requests = result.records.requests
    arrival_s, first_s, finish_s = (
        float(column[row]) for column in (requests.arrival_s, requests.first_token_s, requests.finish_s)
    )
    if latency in {"ttft", "e2el"}:
        return total(found, arrival_s, first_s if latency == "ttft" else finish_s) | front_end_s(result, row)
    further = int(requests.generated_tokens[row]) - 1
    return {part: seconds / further for part, seconds in total(found, first_s, finish_s).items()}
