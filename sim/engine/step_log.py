"""The log of every step, in the form of the schedules that were recorded from vLLM; a leap is written step by step."""

from collections.abc import Callable, Sequence
from typing import Any

from sim.engine.batch import Batch
from sim.engine.leap_planner import LeapPlanner
from sim.engine.request import Request, RequestStatus, admission_order
from sim.engine.scheduler_state import SchedulerState

LogRow = dict[str, Any]


class StepLogger:
    """Opens a row when a batch is launched, and passes it to `emit` when the batch has been collected."""

    def __init__(self, emit: Callable[[LogRow], None]) -> None:
        self._emit = emit
        self._open: dict[int, LogRow] = {}
        self._arrived: list[str] = []
        self._num_rows = 0
        self._num_evictions = 0

    def arrived(self, request: Request) -> None:
        self._arrived.append(request.request_id)

    def step(self, state: SchedulerState, batch: Batch, times_s: tuple[float, float, float]) -> None:
        """A pass that was scheduled by itself, after it is done; `times_s` are those of scheduling, start and end of the step."""
        num_evictions = state.num_evictions
        row = self._new_row(times_s, state, state.num_free_blocks, num_evictions - self._num_evictions)
        self._num_evictions = num_evictions
        chunks = {chunk.request: chunk for chunk in (*batch.chunks, *batch.wasted)}
        ghosts = [chunk.request for chunk in batch.wasted if chunk.request.status is RequestStatus.PREEMPTED]
        runners = sorted((*state.running, *ghosts), key=admission_order) if ghosts else state.running
        for request in runners:
            if request in chunks:
                chunk = chunks[request]
                cells = (chunk.num_tokens, chunk.num_computed_before, chunk.num_new_blocks)
                _add(row, request, *cells, samples=chunk.samples)
            elif _decodes_in(request, batch.step):
                _add_decode(row, request, batch.step, state)
        row["new"] = [request.request_id for request in batch.admitted if not request.num_preemptions]
        row["resumed"] = [request.request_id for request in batch.admitted if request.num_preemptions]
        row["preempted"] = [request.request_id for request in batch.preempted]
        row["hits"] = {
            request.request_id: chunks[request].num_computed_before
            for request in batch.admitted
            if chunks[request].num_computed_before and not request.resumes_at
        }
        if ghosts:
            row["ghosts"] = [request.request_id for request in ghosts]
        self._open[batch.step] = row

    def leap(
        self,
        planner: LeapPlanner,
        state: SchedulerState,
        first: int,
        ends: Sequence[float],
        times_s: tuple[float, float],
    ) -> None:
        """A leap, before it is done: `first` is its first pass, `ends` are the ends of its steps in seconds.

        `times_s` are the times at which the first pass is scheduled and its step starts.
        """
        depth = state.config.num_batches_in_flight
        evicted = 0
        now_s, start_s = times_s
        for number, end_s in enumerate(ends):
            step = first + number
            taken = planner.num_blocks(first, number + 1, planner.num_chunk_tokens)
            evicted_before, evicted = evicted, state.num_evictions_within(taken)
            times = (now_s, start_s, end_s)
            free = state.num_free_blocks - taken + planner.num_passed_blocks(first, number + 1)
            row = self._new_row(times, state, free, evicted - evicted_before)
            for request in state.running:
                if request.status is RequestStatus.DECODING:
                    _add_decode(row, request, step, state)
                elif request.status is RequestStatus.PREFILLING:
                    num_tokens = planner.num_chunk_tokens
                    computed = request.num_computed_tokens + number * num_tokens
                    new_blocks = state.kv.new_blocks(computed, num_tokens)
                    _add(row, request, num_tokens, computed, new_blocks, samples=False)
            self._open[step] = row
            now_s, start_s = start_s if depth > 1 else end_s, end_s
            if number < len(ends) - 1:
                self._close(step + 1 - depth, [], free)
        self._num_evictions += evicted

    def collected(self, state: SchedulerState, batch: int, finished: Sequence[Request]) -> None:
        """A batch has come back; these requests have finished with it."""
        self._close(batch, finished, state.num_free_blocks)

    def _close(self, batch: int, finished: Sequence[Request], num_free_blocks: int) -> None:
        row = self._open.pop(batch)
        row["finished"] = [request.request_id for request in finished]
        row["free_after"] = num_free_blocks
        self._emit(row)

    def _new_row(
        self, times_s: tuple[float, float, float], state: SchedulerState, num_free_blocks: int, num_evicted: int
    ) -> LogRow:
        now_s, start_s, end_s = times_s
        row: LogRow = {
            "i": self._num_rows,
            "t": now_s,
            "start": start_s,
            "end": end_s,
            "n": 0,
            "ctx": 0,
            "sched": [],
            "free": num_free_blocks,
            "arrived": self._arrived,
            "new": [],
            "resumed": [],
            "preempted": [],
            "hits": {},
            "evicted": num_evicted,
            "running": [request.request_id for request in state.running],
            "waiting": [request.request_id for request in state.waiting],
            "sampled": [],
        }
        self._arrived = []
        self._num_rows += 1
        return row


def _decodes_in(request: Request, step: int) -> bool:
    if request.status is RequestStatus.PREFILLING or request.starved_pass == step:
        return False
    return request.first_decode_pass <= step <= request.last_pass


def _add_decode(row: LogRow, request: Request, step: int, state: SchedulerState) -> None:
    computed = step - request.epoch - 1
    new_blocks = state.kv.num_groups if computed % state.config.block_size == 0 else 0
    _add(row, request, 1, computed, new_blocks, samples=True)


def _add(row: LogRow, request: Request, tokens: int, computed: int, new_blocks: int, *, samples: bool) -> None:
    row["n"] += tokens
    row["ctx"] += computed + tokens
    row["sched"].append([request.request_id, tokens, computed, new_blocks])
    if samples:
        row["sampled"].append(request.request_id)
