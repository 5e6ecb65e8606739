"""Facts of a replica that is walked, a row a batch; in the end in the same columns as those of one that leaps."""

from array import array
from collections.abc import Sequence
from math import nan

import numpy as np

from sim.engine.columns import DraftColumns
from sim.engine.decode_stretches import STRETCH, DecodeStretches
from sim.engine.leap_records import CHUNK, LeapRecords
from sim.engine.narrow import NarrowRows, RowLog
from sim.engine.records import EngineRecords, SpeculationRecords
from sim.engine.replica_rows import Outcomes, ReplicaRows
from sim.engine.token_gaps import StepGaps, late_s
from sim.engine.walking.batch import Batch
from sim.engine.walking.call_log import CallLog
from sim.engine.walking.call_rows import CallRows
from sim.engine.walking.calls_ahead import CallsAhead
from sim.engine.walking.state import State
from sim.engine.walking.swapping import SwappingState


class WalkRecorder(ReplicaRows):
    """The recorder of a replica that walks: batches are recorded as they come back, those of one that counts as they are launched."""

    def __init__(self, requests: Outcomes, replica: int = 0, *, speculates: bool = False) -> None:
        super().__init__(requests, replica)
        self._leaps = self._call_log = CallLog()
        self._late = array("q")
        self._dropped = array("q")
        self._num_drafts = array("i")
        self._num_accepted = array("i")
        self._num_verified = 0
        self._speculates = speculates

    def batch(self, batch: Batch) -> None:
        """A batch is on its way, or back."""
        shown = (batch.num_running, batch.num_waiting, batch.num_free_blocks)
        self._call_log.next_goes_back(batch.num_back)
        self.one_pass(batch.shape, shown, len(batch.preempted), batch.num_continued, batch.start_s, batch.duration_s)

    def came_back(self, batch: Batch) -> None:
        """A batch is back."""
        for _ in range(batch.num_dropped):
            self._dropped.append(batch.number)
        for before in batch.late:
            self._late.append(batch.number)
            self._late.append(before)
        if self._speculates:
            self._num_drafts.append(batch.shape.num_drafts if batch.shape else 0)
            self._num_accepted.append(batch.num_accepted)
            self._num_verified += batch.num_verified

    @property
    def call_rows(self) -> CallRows:
        """Where calls are noted as they are worked out."""
        return self._call_log.rows

    def calls(self, ahead: CallsAhead, state: State) -> None:
        """The batches of calls that only decode are on their way."""
        self._call_log.add_calls(ahead, state.num_running, state.num_waiting)

    def records(
        self, state: State, stage_busy_s: Sequence[float], swapping: SwappingState | None = None
    ) -> EngineRecords:
        """All that is not in the table, in columns; to be asked for once, for leaps are let go."""
        for batch in state.in_flight:
            if not batch.did_nothing:
                if state.rotation is None:
                    self.batch(batch)
                batch.num_dropped = batch.num_continued  # for it will never be back
                self.came_back(batch)
        for progress in state.progress.values():
            self.request(progress.request, progress.num_tokens - progress.num_prompt, nan)
        stretches = DecodeStretches(NarrowRows(STRETCH), state.config.block_size, 1)
        leaps = LeapRecords(self._leaps.blocks(), self._chunks.rows(), stretches)
        self._leaps = self._call_log = CallLog()
        self._chunks = RowLog(CHUNK)
        has_stages = len(stage_busy_s) > 1
        if has_stages:
            leaps.note_overlaps()
        if self._speculates:
            leaps.note_drafts(DraftColumns(np.array(self._num_drafts), np.array(self._num_accepted)))
        late = np.array(self._late, dtype=np.int64).reshape(-1, 2)
        return EngineRecords(
            leaps=leaps,
            gaps=StepGaps(leaps, np.array(self._dropped, dtype=np.int64), late_s(leaps, late)),
            prefix_cache_queries=state.prefix_cache_queries,
            prefix_cache_hits=state.prefix_cache_hits,
            num_evictions=state.slots.pool.num_evictions,
            offload=state.connector.records() if state.connector else None,
            stored=state.connector.stored_records() if state.connector else None,
            lora=state.adapters.records() if state.adapters else None,
            swaps=swapping.records() if swapping else None,
            speculation=SpeculationRecords(tuple(state.verified), self._num_verified) if self._speculates else None,
            stage_busy_s=tuple(stage_busy_s) if has_stages else None,
        )
