"""Rows of one replica while it runs: its leaps and the chunks of prompts in them, and its requests in the table of all replicas."""

from struct import Struct
from typing import Final, Protocol

from sim.engine.leap_log import LeapLog, pack_leap
from sim.engine.leap_records import CHUNK
from sim.engine.narrow import RowLog
from sim.engine.request import Request
from sim.steptime.protocol import StepShape

NO_WORK: Final = StepShape(0, 0, (), 0)
pack_chunk: Final = Struct("2i").pack
Shown = tuple[int, int, int]
"""Running requests, waiting ones and free blocks."""


class Outcomes(Protocol):
    """What became of the requests of a run, as all its replicas tell it."""

    def write(self, request: Request, num_generated: int, finish_s: float, replica: int) -> None: ...
    def fail(self, request: Request, num_generated: int, reason: str, replica: int) -> None: ...


class ReplicaRows:
    """`requests` is the table that all replicas of a run share."""

    def __init__(self, requests: Outcomes, replica: int = 0) -> None:
        self._leaps = LeapLog()
        self._chunks = RowLog(CHUNK)
        self._requests = requests
        self._replica = replica

    def one_pass(
        self,
        shape: StepShape | None,
        shown: Shown,
        num_preempted: int,
        num_continued: int,
        start_s: float,
        duration_s: float,
    ) -> None:
        """A pass by itself; `num_continued` requests get a token one pass after their last.

        One that preempts and computes nothing has no step, also where ranks take a dummy one.
        """
        num_decodes, context_tokens, chunks, num_sampled, _ = shape or NO_WORK
        num_running, num_waiting, num_free_blocks = shown
        num_chunk_tokens = 0
        for num_tokens, num_computed in chunks:
            num_chunk_tokens += num_tokens
            self._chunks.add(pack_chunk(num_tokens, num_computed))
        row = pack_leap(
            1,
            num_decodes,
            num_chunk_tokens,
            len(chunks),
            num_sampled,
            num_running,
            num_waiting,
            num_free_blocks,
            num_preempted,
            num_continued,
            context_tokens,
            start_s,
            0.0 if shape is None else duration_s,
            0.0,
            0.0,
        )
        self._leaps.add(row)

    def request(self, request: Request, num_generated: int, finish_s: float) -> None:
        """The outcome of a request; `finish_s` is NaN if it has not finished."""
        self._requests.write(request, num_generated, finish_s, self._replica)

    def failure(self, request: Request, num_generated: int, reason: str) -> None:
        """A request was aborted after it had returned so many tokens."""
        self._requests.fail(request, num_generated, reason, self._replica)
