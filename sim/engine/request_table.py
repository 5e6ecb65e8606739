"""What became of each request: one table for all replicas of a run, each of which fills in the rows that it served."""

from math import nan
from struct import Struct

import numpy as np

from sim.engine.records import Ints, RequestRecords
from sim.engine.request import Request
from sim.engine.request_source import RequestSource

TIMES = ("first_scheduled_s", "first_token_s", "finish_s")
COUNTS = ("generated_tokens", "num_preemptions", "num_cached_tokens")
OUTCOME = np.dtype([(name, "f8") for name in TIMES] + [(name, "i4") for name in (*COUNTS, "replica")])
NO_REPLICA = -1  # a column of integers has no None
pack_outcome_into = Struct("3d4i").pack_into


class RequestTable:
    """40 bytes a request, in trace order. Clients who send requests in their own time add the times at which they did."""

    def __init__(self, source: RequestSource, *, sent_by_clients: bool = False) -> None:
        self._source = source
        self._sent_by_clients = sent_by_clients
        self._arrival_s = source.trace.arrival_s.copy() if sent_by_clients else source.trace.arrival_s
        self._outcomes = np.zeros(len(source), dtype=OUTCOME)
        for name in TIMES:
            self._outcomes[name] = nan
        self._outcomes["replica"] = NO_REPLICA
        self._bytes = self._outcomes.data.cast("B")
        self._failed: dict[int, str] = {}

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
        """A request was aborted after it had returned so many tokens."""
        self.write(request, num_generated, nan, replica)
        self._failed[request.index] = reason

    @property
    def replica(self) -> Ints:
        """Who served each request, NO_REPLICA where nobody did."""
        return np.asarray(self._outcomes["replica"])

    def records(self) -> RequestRecords:
        """The rows as columns, not copied."""
        return RequestRecords(
            arrival_s=self._arrival_s,
            prompt_tokens=self._source.trace.prompt_tokens,
            output_tokens=self._source.max_tokens,
            rejected=self._source.rejected,
            failed=self._failed,
            **{name: self._outcomes[name] for name in (*TIMES, *COUNTS)},
        )
