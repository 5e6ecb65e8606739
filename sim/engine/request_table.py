"""The outcomes of all requests: one table for a run, in which each replica fills in the rows of the requests that it served."""

from math import nan
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.engine.records import Ints, RequestRecords
from sim.engine.request import Request
from sim.engine.request_source import RequestSource

TIMES = ("first_scheduled_s", "first_token_s", "finish_s")
COUNTS = ("generated_tokens", "num_preemptions", "num_cached_tokens")
OUTCOME = np.dtype([(name, "f8") for name in TIMES] + [(name, "i4") for name in (*COUNTS, "replica")])
NO_REPLICA = -1  # a column of integers has no None
NOT_SERVED = (nan,) * len(TIMES) + (0,) * len(COUNTS) + (NO_REPLICA,)
pack_outcome_into: Final = Struct("3d4i").pack_into


class Earlier(NamedTuple):
    """What was before the attempt that a row tells of: when the request came and, where that attempt resumed, when it was
    first scheduled, when its first token came, and how many tokens it had returned.
    """

    arrival_s: float
    first_scheduled_s: float
    first_token_s: float
    num_tokens: int


class TablePart(NamedTuple):
    """Some rows, as they are written, and why some requests were not served."""

    rows: Ints
    outcomes: NDArray[Any]
    failed: dict[int, str]
    turned_away: dict[int, str]


class RequestTable:
    """40 bytes a request, in trace order, and behind them the further answers of those that ask for several.

    Clients who send requests in their own time add the times at which they did.
    """

    def __init__(self, source: RequestSource, *, sent_by_clients: bool = False) -> None:
        self._source = source
        self.answer_rows = source.answer_rows
        self._request = slice(None) if self.answer_rows is None else self.answer_rows.request
        self._sent_by_clients = sent_by_clients
        self._arrival_s = source.trace.arrival_s[self._request]
        if sent_by_clients:
            self._arrival_s = self._arrival_s.copy()
        self._outcomes = np.full(len(self._arrival_s), np.array(NOT_SERVED, dtype=OUTCOME))
        self._bytes = self._outcomes.data.cast("B")
        self._failed: dict[int, str] = {}
        self._turned_away: dict[int, str] = {}
        self._earlier: dict[int, Earlier] = {}

    def write(self, request: Request, num_generated: int, finish_s: float, replica: int) -> None:
        """What became of a request; `finish_s` is NaN where it has not ended."""
        if self._sent_by_clients:
            self._arrival_s[request.index] = request.arrival_s
        pack_outcome_into(
            self._bytes,
            request.index * OUTCOME.itemsize,
            request.first_scheduled_s,
            request.first_token_s if num_generated else nan,
            finish_s,
            num_generated,
            request.num_preemptions,
            request.num_cached_tokens,
            replica,
        )

    def fail(self, request: Request, num_generated: int, reason: str, replica: int) -> None:
        """A request was aborted or lost after it had returned so many tokens."""
        self.write(request, num_generated, nan, replica)
        self._failed[request.index] = reason

    def clear(self, row: int) -> None:
        """Forget what became of a request."""
        self._failed.pop(row, None)
        self._outcomes[row] = NOT_SERVED

    def reject(self, request: Request, reason: str) -> None:
        """A request was turned away, and no replica had it."""
        if self._sent_by_clients:
            self._arrival_s[request.index] = request.arrival_s
        self._turned_away[request.index] = reason

    def precede(self, row: int, earlier: Earlier) -> None:
        """The row will tell of the last attempt; this was before it."""
        self._earlier[row] = earlier

    def part(self) -> TablePart:
        """The rows that have been written here."""
        rows = np.flatnonzero(self.replica != NO_REPLICA)
        return TablePart(rows, self._outcomes[rows], self._failed, self._turned_away)

    def add(self, part: TablePart) -> None:
        """Take rows over that were written elsewhere."""
        self._outcomes[part.rows] = part.outcomes
        self._failed |= part.failed
        self._turned_away |= part.turned_away

    @property
    def replica(self) -> Ints:
        """Who generated each answer, NO_REPLICA where nobody did."""
        return np.asarray(self._outcomes["replica"])

    def records(self) -> RequestRecords:
        """The rows as columns, an entry an answer, not copied; to be asked for once."""
        for row, earlier in self._earlier.items():
            self._add(row, earlier)
        rejected = {**self._source.rejected, **self._turned_away} if self._turned_away else self._source.rejected
        return RequestRecords(
            arrival_s=self._arrival_s,
            prompt_tokens=self._source.trace.prompt_tokens[self._request],
            output_tokens=self._source.max_tokens[self._request],
            rejected=rejected,
            failed=self._failed,
            **{name: self._outcomes[name] for name in (*TIMES, *COUNTS)},
        )

    def _add(self, row: int, earlier: Earlier) -> None:
        """Have a row tell of the whole request."""
        if self._sent_by_clients:
            self._arrival_s[row] = earlier.arrival_s
        if earlier.num_tokens:
            outcome = self._outcomes[row]
            outcome["first_scheduled_s"], outcome["first_token_s"] = earlier.first_scheduled_s, earlier.first_token_s
            outcome["generated_tokens"] += earlier.num_tokens
