"""The outcomes of requests that are forgotten once they are known: what a run keeps of them that is longer than memory."""

from collections.abc import Sequence
from math import nan
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.engine.records import Ints, RequestRecords
from sim.engine.request import Request
from sim.engine.whole_requests import whole_requests

TIMES = ("arrival_s", "first_scheduled_s", "first_token_s", "finish_s")
COUNTS = ("prompt_tokens", "output_tokens", "generated_tokens", "num_preemptions", "num_cached_tokens")
ENDED = np.dtype([(name, "f8") for name in TIMES] + [(name, "i4") for name in (*COUNTS, "replica")])
pack_ended = Struct("4d6i").pack


class Ended(NamedTuple):
    """Some requests in the order in which they ended, and who served each."""

    requests: RequestRecords
    replica: Ints


class Answers:
    """The rows of a request for several answers, until all are there: that of the first answer first."""

    def __init__(self, first: Request, num_answers: int) -> None:
        self.first = first
        self.num_missing = num_answers
        self.rows: list[bytes] = []


class EndedRequests:
    """Rows as they come, from all replicas of a run; one for a request of several answers, when the last has ended."""

    def __init__(self) -> None:
        self._rows = bytearray()
        self._whole: list[Answers] = []
        self._answers: dict[Request, Answers] = {}

    def expect(self, request: Request, others: Sequence[Request]) -> None:
        """These are further answers to what a request asks for."""
        answers = Answers(request, 1 + len(others))
        for answer in (request, *others):
            self._answers[answer] = answers

    def write(self, request: Request, num_generated: int, finish_s: float, replica: int) -> None:
        """What became of a request; `finish_s` is NaN where it has not ended."""
        row = pack_ended(
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
        answers = self._answers.pop(request, None) if self._answers else None
        if answers is None:
            self._rows += row
        else:
            self._add(answers, row, is_first=answers.first is request)

    def _add(self, answers: Answers, row: bytes, *, is_first: bool) -> None:
        answers.rows.insert(0 if is_first else len(answers.rows), row)
        answers.num_missing -= 1
        if not answers.num_missing:
            self._whole.append(answers)

    def fail(self, request: Request, num_generated: int, reason: str, replica: int) -> None:
        """Nobody aborts a request that is forgotten."""
        raise NotImplementedError

    def take(self) -> Ended:
        """Those since it was last asked for."""
        single = _ended(np.frombuffer(self._rows, dtype=ENDED))
        whole, self._whole, self._rows = self._whole, [], bytearray()
        if not whole:
            return single
        of_answers = _ended(np.frombuffer(b"".join([row for answers in whole for row in answers.rows]), dtype=ENDED))
        counts = np.array([len(answers.rows) for answers in whole])
        numbers = np.repeat(np.arange(len(whole)), counts)
        together = whole_requests(of_answers.requests, numbers)
        columns = {
            name: np.concatenate((getattr(single.requests, name), getattr(together, name)))
            for name in (*TIMES, *COUNTS)
        }
        replica = np.concatenate((single.replica, of_answers.replica[np.cumsum(counts) - counts]))
        return Ended(RequestRecords(**columns, rejected={}, failed={}), replica)


def _ended(rows: NDArray[Any]) -> Ended:
    columns = {name: rows[name] for name in (*TIMES, *COUNTS)}
    return Ended(RequestRecords(**columns, rejected={}, failed={}), np.asarray(rows["replica"]))
