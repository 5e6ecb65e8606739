"""Facts of a replica, appended as they happen: a row a leap, and what became of each request in the table of all."""

from array import array
from math import nan
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.engine.batch import Batch
from sim.engine.leaps import Leap
from sim.engine.progress import num_returned_tokens
from sim.engine.records import DecodeStretches, EngineRecords, Floats, Ints, LeapRecords
from sim.engine.request import Request
from sim.engine.request_table import RequestTable
from sim.engine.scheduler_state import SchedulerState
from sim.steptime.protocol import StepShape

COUNTS = (
    "num_steps",
    "num_decodes",
    "num_chunk_tokens",
    "num_chunks",
    "num_sampled",
    "num_running",
    "num_waiting",
    "num_free_blocks",
    "num_preempted",
    "num_continued",
)
LEAP_TIMES = ("start_s", "linear_s", "square_s", "cube_s")
LEAP = np.dtype(
    [(name, "i4") for name in COUNTS] + [("decode_context_tokens", "i8")] + [(name, "f8") for name in LEAP_TIMES]
)
KEPT = (*COUNTS[:-1], "decode_context_tokens", "start_s")
CHUNK = np.dtype([("chunk_tokens", "i4"), ("chunk_computed_tokens", "i4")])
LEAPS_AT_ONCE = 16_384
NO_WORK = StepShape(0, 0, (), 0)
pack_leap = Struct("10iq4d").pack
pack_chunk = Struct("2i").pack


class Recorder:
    """Leaps of one replica in rows, and the rows of its requests in the table that it shares with the others."""

    def __init__(self, requests: RequestTable, replica: int = 0) -> None:
        self._leaps = bytearray()
        self._chunks = bytearray()
        self._requests = requests
        self._replica = replica

    def leap(
        self, leap: Leap, num_steps: int, decodes: tuple[int, int], chunk: tuple[int, int], state: SchedulerState
    ) -> None:
        """The first steps of a leap, after their passes: how many decode in each and the sum of their contexts after the
        first; tokens of the prompt that fills it and those computed before, both 0 where none does.
        """
        _, start_s, linear_s, square_s, cube_s = leap
        num_decodes, context_tokens = decodes
        num_chunk_tokens, num_computed = chunk
        if num_chunk_tokens:
            self._chunks += pack_chunk(num_chunk_tokens, num_computed)
        self._leaps += pack_leap(
            num_steps,
            num_decodes,
            num_chunk_tokens,
            1 if num_chunk_tokens else 0,
            num_decodes,
            state.num_running,
            state.num_waiting,
            state.num_free_blocks,
            0,
            num_decodes,
            context_tokens,
            start_s,
            linear_s,
            square_s,
            cube_s,
        )

    def step(self, batch: Batch, start_s: float, duration_s: float, state: SchedulerState) -> None:
        """A pass of its own, after it has been done."""
        num_decodes, context_tokens, chunks, num_sampled = batch.shape or NO_WORK
        for num_chunk_tokens, num_computed in chunks:
            self._chunks += pack_chunk(num_chunk_tokens, num_computed)
        self._leaps += pack_leap(
            1,
            num_decodes,
            batch.num_tokens - num_decodes,
            len(chunks),
            num_sampled,
            state.num_running,
            state.num_waiting,
            state.num_free_blocks,
            len(batch.preempted),
            batch.num_decodes,
            context_tokens,
            start_s,
            duration_s,
            0.0,
            0.0,
        )

    def request(self, request: Request, num_generated: int, finish_s: float) -> None:
        """What became of a request; `finish_s` is NaN where it has not ended."""
        self._requests.write(request, num_generated, finish_s, self._replica)

    def records(self, state: SchedulerState) -> EngineRecords:
        """All that is not in the table, in columns; to be asked for once, for the rows of leaps are let go."""
        for request in (*state.running, *state.waiting):
            self.request(request, num_returned_tokens(request, state.num_collected), nan)
        leaps, self._leaps = np.frombuffer(self._leaps, dtype=LEAP), bytearray()
        ends_s = _step_ends_s(leaps)
        num_continued = _narrow(leaps["num_continued"])
        chunks, self._chunks = np.frombuffer(self._chunks, dtype=CHUNK), bytearray()
        facts = {name: leaps[name].copy() for name in KEPT} | {name: chunks[name].copy() for name in CHUNK.fields or ()}
        del leaps  # near half of it is times, which nobody needs now that those of the steps are known
        itl_s, itl_count = _token_gaps(ends_s, np.repeat(num_continued, facts["num_steps"]), state)
        return EngineRecords(
            leaps=LeapRecords(step_end_s=ends_s, decode_stretches=_decode_stretches(state), **facts),
            itl_s=itl_s,
            itl_count=itl_count,
            prefix_cache_queries=state.prefix_cache_queries,
            prefix_cache_hits=state.prefix_cache_hits,
            num_evictions=state.num_evictions,
        )


def _step_ends_s(leaps: NDArray[Any]) -> Floats:
    """When each step of all leaps ended, as `leaps.end_s` has it."""
    lasts = np.cumsum(leaps["num_steps"], dtype=np.int64)
    ends_s = np.empty(lasts[-1] if len(lasts) else 0)
    for first in range(0, len(leaps), LEAPS_AT_ONCE):
        part = leaps[first : first + LEAPS_AT_ONCE]
        counts, last = part["num_steps"], lasts[first : first + LEAPS_AT_ONCE]
        begin, end = int(last[0] - counts[0]), int(last[-1])
        numbers = np.arange(begin + 1.0, end + 1.0) - np.repeat(last - counts, counts)
        start_s, linear_s, square_s, cube_s = (np.repeat(part[name], counts) for name in LEAP_TIMES)
        ends_s[begin:end] = start_s + numbers * (linear_s + numbers * (square_s + numbers * cube_s))
    return ends_s


def _narrow(counts: Ints) -> Ints:
    """The counts in the smallest signed integers that hold them all."""
    return counts.astype(np.min_scalar_type(-1 - int(counts.max(initial=0))))


def _view(column: "array[Any]", dtype: type[np.generic]) -> NDArray[Any]:
    """The column as numpy, not copied."""
    return np.frombuffer(column, dtype=dtype) if column else np.zeros(0, dtype=dtype)


def _decode_stretches(state: SchedulerState) -> DecodeStretches:
    table = _view(state.history.stretches, np.int64).reshape(-1, 3)
    config = state.config
    delays = tuple(delay for delay in config.passing_delays if delay is not None)
    first, last, epoch = table.T
    return DecodeStretches(first, last, epoch, config.block_size, len(config.kv_groups), delays)


def _token_gaps(ends_s: Floats, num_continued: Ints, state: SchedulerState) -> tuple[Floats, Ints]:
    """Times between tokens of a request, and how often each occurred.

    A decode's tokens are a step apart, but for those that had starved or been preempted in between.
    """
    starved = [late for late in state.history.late if late[0] < len(ends_s)]
    for step, _ in starved:
        num_continued[step] -= 1
    late = np.array([*starved, *state.history.resumed], dtype=np.int64).reshape(-1, 2)
    gaps_s = np.zeros(len(ends_s) + len(late))  # a decode is never in the first step
    np.subtract(ends_s[1:], ends_s[:-1], out=gaps_s[1 : len(ends_s)])
    if not len(late):
        return gaps_s, num_continued
    gaps_s[len(ends_s) :] = ends_s[late[:, 0]] - ends_s[late[:, 1]]
    return gaps_s, np.concatenate((num_continued, np.ones(len(late), dtype=num_continued.dtype)))
