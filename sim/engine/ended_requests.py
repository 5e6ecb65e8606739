"""The outcomes of requests that are forgotten once they are known: what a run keeps of them that is longer than memory."""

from math import nan
from struct import Struct
from typing import NamedTuple

import numpy as np

from sim.engine.records import Ints, RequestRecords
from sim.engine.request import Request

TIMES = ("arrival_s", "first_scheduled_s", "first_token_s", "finish_s")
COUNTS = ("prompt_tokens", "output_tokens", "generated_tokens", "num_preemptions", "num_cached_tokens")
ENDED = np.dtype([(name, "f8") for name in TIMES] + [(name, "i4") for name in (*COUNTS, "replica")])
pack_ended = Struct("4d6i").pack


class Ended(NamedTuple):
    """Some requests in the order in which they ended, and who served each."""

    requests: RequestRecords
    replica: Ints


class EndedRequests:
    """Rows as they come, from all replicas of a run."""

    def __init__(self) -> None:
        self._rows = bytearray()

    def write(self, request: Request, num_generated: int, finish_s: float, replica: int) -> None:
        """What became of a request; `finish_s` is NaN where it has not ended."""
        self._rows += pack_ended(
            request.arrival_s,
            request.first_scheduled_s,
            request.first_token_s if num_generated else nan,
            finish_s,
            request.num_prompt_tokens,
            request.max_tokens,
            num_generated,
            request.num_preemptions,
            request.num_cached_tokens,
            replica,
        )

    def fail(self, request: Request, num_generated: int, reason: str, replica: int) -> None:
        """Nobody aborts a request that is forgotten."""
        raise NotImplementedError

    def take(self) -> Ended:
        """Those since it was last asked for."""
        rows = np.frombuffer(self._rows, dtype=ENDED)
        self._rows = bytearray()
        columns = {name: rows[name] for name in (*TIMES, *COUNTS)}
        return Ended(RequestRecords(**columns, rejected={}, failed={}), np.asarray(rows["replica"]))
