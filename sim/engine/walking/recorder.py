"""Facts of a replica that is walked, a row a batch; in the end in the same columns as those of one that leaps."""

from array import array
from math import nan
from struct import Struct

import numpy as np

from sim.engine.leap_log import LeapLog, pack_leap
from sim.engine.records import DecodeStretches, EngineRecords, LeapRecords
from sim.engine.request import Request
from sim.engine.request_table import RequestTable
from sim.engine.token_gaps import StepGaps
from sim.engine.walking.batch import Batch
from sim.engine.walking.state import State
from sim.steptime.protocol import StepShape

CHUNK = np.dtype([("chunk_tokens", "i4"), ("chunk_computed_tokens", "i4")])
NO_WORK = StepShape(0, 0, (), 0)
pack_chunk = Struct("2i").pack


class WalkRecorder:
    """Batches of one replica in rows as they come back, and the rows of its requests in the table that it shares with others."""

    def __init__(self, requests: RequestTable, replica: int = 0) -> None:
        self._leaps = LeapLog()
        self._chunks = bytearray()
        self._late = array("q")
        self._num_batches = 0
        self._requests = requests
        self._replica = replica

    def batch(self, batch: Batch) -> None:
        """A batch is back, or will never be."""
        num_decodes, context_tokens, chunks, num_sampled = batch.shape or NO_WORK
        num_chunk_tokens = 0
        for num_tokens, num_computed in chunks:
            num_chunk_tokens += num_tokens
            self._chunks += pack_chunk(num_tokens, num_computed)
        for before in batch.late:
            self._late.append(self._num_batches)
            self._late.append(before)
        self._num_batches += 1
        row = pack_leap(
            1,
            num_decodes,
            num_chunk_tokens,
            len(chunks),
            num_sampled,
            batch.num_running,
            batch.num_waiting,
            batch.num_free_blocks,
            len(batch.preempted),
            batch.num_continued,
            context_tokens,
            batch.start_s,
            batch.duration_s,
            0.0,
            0.0,
        )
        self._leaps.add(row)

    def request(self, request: Request, num_generated: int, finish_s: float) -> None:
        """What became of a request; `finish_s` is NaN where it has not ended."""
        self._requests.write(request, num_generated, finish_s, self._replica)

    def failure(self, request: Request, num_generated: int, reason: str) -> None:
        """A request was aborted after it had returned so many tokens."""
        self._requests.fail(request, num_generated, reason, self._replica)

    def records(self, state: State) -> EngineRecords:
        """All that is not in the table, in columns; to be asked for once, for leaps are let go."""
        for batch in state.in_flight:
            if not batch.did_nothing:
                self.batch(batch)
        for progress in state.progress.values():
            self.request(progress.request, progress.num_tokens - progress.num_prompt, nan)
        columns, self._leaps = self._leaps.columns(), LeapLog()
        chunks = np.frombuffer(self._chunks, dtype=CHUNK)
        none = np.zeros(0, dtype=np.int64)
        late = np.array(self._late, dtype=np.int64).reshape(-1, 2)
        gaps = StepGaps(columns["step_end_s"], columns["num_steps"], columns.pop("num_continued"), none, late)
        return EngineRecords(
            leaps=LeapRecords(
                decode_stretches=DecodeStretches(none, none, none, state.config.block_size, 1),
                chunk_tokens=chunks["chunk_tokens"],
                chunk_computed_tokens=chunks["chunk_computed_tokens"],
                **columns,
            ),
            gaps=gaps,
            prefix_cache_queries=state.prefix_cache_queries,
            prefix_cache_hits=state.prefix_cache_hits,
            num_evictions=state.slots.pool.num_evictions,
            offload=state.connector.records() if state.connector else None,
        )
