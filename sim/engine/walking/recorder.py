"""Facts of a replica that is walked, a row a batch; in the end in the same columns as those of one that leaps."""

from array import array
from collections.abc import Sequence
from math import nan

import numpy as np

from sim.engine.leap_log import LeapLog
from sim.engine.records import DecodeStretches, EngineRecords, Floats, LeapRecords
from sim.engine.replica_rows import CHUNK, ReplicaRows
from sim.engine.request_table import RequestTable
from sim.engine.token_gaps import StepGaps
from sim.engine.walking.batch import Batch
from sim.engine.walking.state import State


class WalkRecorder(ReplicaRows):
    """The recorder of a replica that walks: batches are recorded as they come back."""

    def __init__(self, requests: RequestTable, replica: int = 0) -> None:
        super().__init__(requests, replica)
        self._late = array("q")
        self._num_batches = 0

    def batch(self, batch: Batch) -> None:
        """A batch is back, or will never be."""
        for before in batch.late:
            self._late.append(self._num_batches)
            self._late.append(before)
        self._num_batches += 1
        shown = (batch.num_running, batch.num_waiting, batch.num_free_blocks)
        num_preempted = len(batch.preempted)
        self.one_pass(batch.shape, shown, num_preempted, batch.num_continued, batch.start_s, batch.duration_s)

    def records(self, state: State, stage_busy_s: Sequence[float]) -> EngineRecords:
        """All that is not in the table, in columns; to be asked for once, for leaps are let go."""
        for batch in state.in_flight:
            if not batch.did_nothing:
                self.batch(batch)
        for progress in state.progress.values():
            self.request(progress.request, progress.num_tokens - progress.num_prompt, nan)
        columns, self._leaps = self._leaps.columns(), LeapLog()
        chunks = np.frombuffer(self._chunks, dtype=CHUNK)
        none, has_stages = np.zeros(0, dtype=np.int64), len(stage_busy_s) > 1
        late = np.array(self._late, dtype=np.int64).reshape(-1, 2)
        gaps = StepGaps(columns["step_end_s"], columns["num_steps"], columns.pop("num_continued"), none, late)
        return EngineRecords(
            leaps=LeapRecords(
                decode_stretches=DecodeStretches(none, none, none, state.config.block_size, 1),
                chunk_tokens=chunks["chunk_tokens"],
                chunk_computed_tokens=chunks["chunk_computed_tokens"],
                overlap_s=_overlap_s(columns["start_s"], columns["step_end_s"]) if has_stages else None,
                **columns,
            ),
            gaps=gaps,
            prefix_cache_queries=state.prefix_cache_queries,
            prefix_cache_hits=state.prefix_cache_hits,
            num_evictions=state.slots.pool.num_evictions,
            offload=state.connector.records() if state.connector else None,
            lora=state.adapters.records() if state.adapters else None,
            stage_busy_s=tuple(stage_busy_s) if has_stages else None,
        )


def _overlap_s(start_s: Floats, end_s: Floats) -> Floats:
    """How long the batch before each one still ran; batches end in order."""
    return np.maximum(np.concatenate((start_s[:1], end_s[:-1])) - start_s, 0.0)
