"""Facts of a run, appended as they happen: a row a leap, a number a step, a row a request."""

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.serving.batch import Batch
from sim.serving.front_door import Incoming
from sim.serving.records import DecodeStretches, Floats, Ints, LeapRecords, Records, RequestRecords
from sim.serving.request import Request
from sim.serving.scheduler import Scheduler
from sim.serving.standing import num_returned_tokens

LEAP_FACTS = (
    "num_steps",
    "num_continued",
    "num_decodes",
    "num_chunk_tokens",
    "num_running",
    "num_waiting",
    "num_free_blocks",
    "num_preempted",
)


class Recorder:
    """Leaps in columns, the end of every step, and what became of each request, by row of the trace."""

    def __init__(self, incoming: Incoming) -> None:
        num_requests = len(incoming)
        self._incoming = incoming
        self._arrival_s = incoming.trace.arrival_s.copy()
        self._leaps = array("i")
        self._leap_starts_s = array("d")
        self.step_ends_s = array("d")
        self._first_scheduled_s = np.full(num_requests, np.nan)
        self._first_token_step = np.full(num_requests, -1, dtype=np.int64)
        self._last_token_step = np.full(num_requests, -1, dtype=np.int64)
        self._num_generated = np.zeros(num_requests, dtype=np.int64)
        self._num_preemptions = np.zeros(num_requests, dtype=np.int64)
        self._num_cached_tokens = np.zeros(num_requests, dtype=np.int64)

    def leap(self, ends_s: Sequence[float], start_s: float, num_decodes: int, scheduler: Scheduler) -> None:
        """Consecutive steps of the same decodes, after their passes."""
        self._leap_starts_s.append(start_s)
        self.step_ends_s.extend(ends_s)
        running, waiting = len(scheduler.running), len(scheduler.waiting)
        free = scheduler.kv.pool.num_free
        self._leaps.extend((len(ends_s), num_decodes, num_decodes, 0, running, waiting, free, 0))

    def step(self, batch: Batch, start_s: float, end_s: float, scheduler: Scheduler) -> None:
        """A pass of its own, after it has been done."""
        self._leap_starts_s.append(start_s)
        self.step_ends_s.append(end_s)
        decodes = batch.shape.num_decodes if batch.shape else 0
        tokens = (1, batch.num_decodes, decodes, batch.num_tokens - decodes)
        running, waiting = len(scheduler.running), len(scheduler.waiting)
        self._leaps.extend((*tokens, running, waiting, scheduler.kv.pool.num_free, len(batch.preempted)))

    def request(self, request: Request, num_generated: int) -> None:
        """What became of a request."""
        row = request.index
        self._arrival_s[row] = request.arrival_s
        if request.first_scheduled_s is not None:
            self._first_scheduled_s[row] = request.first_scheduled_s
        self._first_token_step[row] = request.first_token_pass
        self._num_generated[row] = num_generated
        self._num_preemptions[row] = request.num_preemptions
        self._num_cached_tokens[row] = request.num_cached_tokens
        if num_generated == request.max_tokens:
            self._last_token_step[row] = request.last_pass

    def records(self, scheduler: Scheduler) -> Records:
        """Everything recorded, in columns."""
        for request in (*scheduler.running, *scheduler.waiting):
            self.request(request, num_returned_tokens(request, scheduler.num_collected))
        ends_s = _view(self.step_ends_s, np.float64)
        table = _view(self._leaps, np.int32).reshape(-1, len(LEAP_FACTS))
        columns = {name: table[:, number] for number, name in enumerate(LEAP_FACTS)}
        num_continued = np.repeat(columns.pop("num_continued"), columns["num_steps"])
        itl_s, itl_count = _token_gaps(ends_s, num_continued, scheduler)
        return Records(
            requests=self._request_records(ends_s),
            leaps=LeapRecords(
                start_s=_view(self._leap_starts_s, np.float64),
                step_end_s=ends_s,
                decode_stretches=_decode_stretches(scheduler),
                **columns,
            ),
            itl_s=itl_s,
            itl_count=itl_count,
            prefix_cache_queries=scheduler.prefix_cache_queries,
            prefix_cache_hits=scheduler.prefix_cache_hits,
            num_evictions=scheduler.kv.pool.num_evictions,
        )

    def _request_records(self, ends_s: Floats) -> RequestRecords:
        rejected = self._incoming.rejected
        return RequestRecords(
            arrival_s=self._arrival_s,
            prompt_tokens=self._incoming.trace.prompt_tokens,
            output_tokens=self._incoming.max_tokens,
            generated_tokens=self._num_generated,
            first_scheduled_s=self._first_scheduled_s,
            first_token_s=_ends_of(self._first_token_step, ends_s),
            finish_s=_ends_of(self._last_token_step, ends_s),
            num_preemptions=self._num_preemptions,
            num_cached_tokens=self._num_cached_tokens,
            rejected=tuple(rejected.get(row) for row in range(len(self._arrival_s))),
        )


def _view(column: "array[Any]", dtype: type[np.generic]) -> NDArray[Any]:
    """The column as numpy, not copied."""
    return np.frombuffer(column, dtype=dtype) if column else np.zeros(0, dtype=dtype)


def _ends_of(steps: Ints, ends_s: Floats) -> Floats:
    """When these steps ended; NaN for step -1, which never was."""
    if not len(ends_s):
        return np.full(len(steps), np.nan)
    return np.where(steps >= 0, ends_s[steps], np.nan)


def _decode_stretches(scheduler: Scheduler) -> DecodeStretches:
    table = _view(scheduler.history.stretches, np.int64).reshape(-1, 3)
    block_size, blocks_at_once = scheduler.config.block_size, scheduler.kv.num_groups
    return DecodeStretches(table[:, 0], table[:, 1], table[:, 2], block_size, blocks_at_once)


def _token_gaps(ends_s: Floats, num_continued: Ints, scheduler: Scheduler) -> tuple[Floats, Ints]:
    """Times between tokens of a request, and how often each occurred.

    A decode's tokens are a step apart, but for those that had starved or been preempted in between.
    """
    starved = [late for late in scheduler.history.late if late[0] < len(ends_s)]
    for step, _ in starved:
        num_continued[step] -= 1
    late = np.array([*starved, *scheduler.history.resumed], dtype=np.int64).reshape(-1, 2)
    late_s = ends_s[late[:, 0]] - ends_s[late[:, 1]]
    gaps_s = np.zeros_like(ends_s)  # a decode is never in the first step
    np.subtract(ends_s[1:], ends_s[:-1], out=gaps_s[1:])
    if not len(late):
        return gaps_s, num_continued
    counts = np.concatenate((num_continued, np.ones(len(late_s), dtype=num_continued.dtype)))
    return np.concatenate((gaps_s, late_s)), counts
