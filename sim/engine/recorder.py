"""Records a replica while it runs: a row for each leap, and the outcome of each request in the table of all requests."""

from math import nan

import numpy as np

from sim.engine.batch import Batch
from sim.engine.decode_history import DecodeHistory
from sim.engine.decode_stretches import DecodeStretches
from sim.engine.leap_log import LeapLog, pack_leap
from sim.engine.leap_records import CHUNK, LeapRecords
from sim.engine.leaps import Leap
from sim.engine.narrow import RowLog
from sim.engine.progress import num_returned_tokens
from sim.engine.records import EngineRecords
from sim.engine.replica_rows import ReplicaRows, pack_chunk
from sim.engine.scheduler_state import SchedulerState
from sim.engine.token_gaps import StepGaps


class Recorder(ReplicaRows):
    """The recorder of a replica that leaps."""

    def leap(
        self, leap: Leap, num_steps: int, decodes: tuple[int, int], chunk: tuple[int, int], state: SchedulerState
    ) -> None:
        """The first `num_steps` steps of a leap, after their passes are done.

        `decodes` is (decodes in each step, sum of their contexts in tokens after the first step); `chunk` is (tokens of a
        prompt in the step, tokens of it computed before), (0, 0) if the leap computes no prompt.
        """
        num_decodes, context_tokens = decodes
        num_chunk_tokens, num_computed = chunk
        if num_chunk_tokens:
            self._chunks.add(pack_chunk(num_chunk_tokens, num_computed))
        row = pack_leap(
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
            leap.start_s,
            leap.linear_s,
            leap.square_s,
            leap.cube_s,
        )
        self._leaps.add(row)

    def step(self, batch: Batch, start_s: float, duration_s: float, state: SchedulerState) -> None:
        """A pass that was scheduled by itself, after it is done. One that preempts and computes nothing has no step, also
        where ranks take a dummy one.
        """
        shown = (state.num_running, state.num_waiting, state.num_free_blocks)
        step_s = 0.0 if batch.shape is None else duration_s
        self.one_pass(batch.shape, shown, len(batch.preempted), batch.num_decodes, start_s, step_s)

    def records(self, state: SchedulerState) -> EngineRecords:
        """Everything that is not in the table of requests, in columns. Call it once, at the end: it forgets the leaps."""
        for request in (*state.running, *state.waiting):
            self.request(request, num_returned_tokens(request, state.num_collected), nan)
        leaps = LeapRecords(self._leaps.blocks(), self._chunks.rows(), _decode_stretches(state))
        self._leaps, self._chunks = LeapLog(), RowLog(CHUNK)
        return EngineRecords(
            leaps=leaps,
            gaps=_token_gaps(leaps, state.history),
            prefix_cache_queries=state.prefix_cache_queries,
            prefix_cache_hits=state.prefix_cache_hits,
            num_evictions=state.num_evictions,
            offload=None,
            lora=None,
            swaps=None,
            speculation=None,
            stage_busy_s=None,
        )


def _decode_stretches(state: SchedulerState) -> DecodeStretches:
    config = state.config
    delays = tuple(delay for delay in config.passing_delays if delay is not None)
    return DecodeStretches(state.history.stretches.rows(), config.block_size, len(config.kv_groups), delays)


def _token_gaps(leaps: LeapRecords, history: DecodeHistory) -> StepGaps:
    """The gaps, to be computed when asked for; a late token that was due after the last step is left out."""
    starved = [token for token in history.late if token.step < leaps.num_passes]
    steps = np.sort(np.array([token.step for token in starved] + history.lost_decode_steps, dtype=np.int64))
    late = np.array([(token.step, token.step_before) for token in (*starved, *history.resumed)], dtype=np.int64)
    return StepGaps(leaps, steps, late.reshape(-1, 2))
