"""Latencies of the completed requests, as the benchmark client of vLLM defines them, computed a part at a time."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.engine.records import Floats, Ints, RequestRecords

Rows = slice | NDArray[np.int64]
ALL = slice(None)
ROWS_AT_ONCE = 1 << 16


class Latency:
    """A latency in seconds of the requests that have it, as samples that are read in parts."""

    def __init__(
        self, requests: RequestRecords, of: Callable[[RequestRecords, Rows], Floats], rows: NDArray[np.int64] | None
    ) -> None:
        """`of` gives the latency in some rows of the requests; `rows` are those that have it, None if all do."""
        self._requests = requests
        self._of = of
        self._rows = rows

    def __len__(self) -> int:
        return len(self._requests) if self._rows is None else len(self._rows)

    def part(self, first: int, end: int) -> tuple[Floats, Ints]:
        """Latencies `first` to before `end`, each of which counts once."""
        some_s = self._of(self._requests, slice(first, end) if self._rows is None else self._rows[first:end])
        return some_s, np.ones(len(some_s), dtype=np.int8)

    def all_s(self) -> Floats:
        """The whole column."""
        return self.part(0, len(self))[0]


class Latencies(NamedTuple):
    """`tpot` leaves out requests of one token: they have no time per *further* token."""

    ttft: Latency
    tpot: Latency
    e2el: Latency


def is_completed(requests: RequestRecords, rows: Rows = ALL) -> NDArray[np.bool_]:
    """Which requests generated all tokens that were asked for."""
    return np.isfinite(requests.finish_s[rows])


def queue_time_s(requests: RequestRecords, rows: Rows = ALL) -> Floats:
    """From arrival to the first step; NaN if there was none."""
    return np.asarray(requests.first_scheduled_s[rows] - requests.arrival_s[rows])


def time_to_first_token_s(requests: RequestRecords, rows: Rows = ALL) -> Floats:
    """From arrival; NaN if there was no token."""
    return np.asarray(requests.first_token_s[rows] - requests.arrival_s[rows])


def time_per_output_token_s(requests: RequestRecords, rows: Rows = ALL) -> Floats:
    """(finish - first token) / (tokens - 1) of each request; NaN if there is no second token or no finish."""
    generated_tokens = requests.generated_tokens[rows]
    further = np.where(generated_tokens > 1, generated_tokens - 1, np.nan)
    return np.asarray((requests.finish_s[rows] - requests.first_token_s[rows]) / further, dtype=np.float64)


def end_to_end_s(requests: RequestRecords, rows: Rows = ALL) -> Floats:
    """From arrival to the last token; NaN if it did not come."""
    return np.asarray(requests.finish_s[rows] - requests.arrival_s[rows])


def latencies(requests: RequestRecords) -> Latencies:
    """Time to first token, time per output token and end-to-end latency of the completed requests."""
    done = _rows_where(requests, is_completed)
    has_tpot = _rows_where(requests, lambda some, rows: np.isfinite(time_per_output_token_s(some, rows)))
    return Latencies(
        Latency(requests, time_to_first_token_s, done),
        Latency(requests, time_per_output_token_s, has_tpot),
        Latency(requests, end_to_end_s, done),
    )


def queue_times(requests: RequestRecords) -> Latency:
    """Of the completed requests."""
    return Latency(requests, queue_time_s, _rows_where(requests, is_completed))


def _rows_where(
    requests: RequestRecords, has: Callable[[RequestRecords, Rows], NDArray[np.bool_]]
) -> NDArray[np.int64] | None:
    """The requests of which that is true; None if it is of all."""
    firsts = range(0, len(requests), ROWS_AT_ONCE)
    found = [first + np.flatnonzero(has(requests, slice(first, first + ROWS_AT_ONCE))) for first in firsts]
    return None if sum(map(len, found)) == len(requests) else np.concatenate(found)
