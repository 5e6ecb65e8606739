"""Records a replica while it runs: a row for each leap, and the outcome of each request in the table of all requests."""

from math import nan

import numpy as np

from sim.engine.batch import Batch
from sim.engine.columns import Floats, Ints
from sim.engine.config import SchedulerConfig
from sim.engine.decode_history import Taken
from sim.engine.decode_stretches import DecodeStretches
from sim.engine.leap_log import LeapLog, pack_decodes, pack_leap
from sim.engine.leap_records import CHUNK, LeapRecords
from sim.engine.leaps import Leap
from sim.engine.narrow import RowLog
from sim.engine.progress import num_returned_tokens
from sim.engine.records import EngineRecords
from sim.engine.replica_rows import Outcomes, ReplicaRows, pack_chunk
from sim.engine.scheduler_state import SchedulerState
from sim.engine.token_gaps import StepGaps


class Recorder(ReplicaRows):
    """The recorder of a replica that leaps.

    `_num_taken` passes have been asked for before, as have been the counts `_counted`; `_ends_s` are the ends of some of them, by number.
    """

    def __init__(self, requests: Outcomes, replica: int = 0) -> None:
        super().__init__(requests, replica)
        self._num_taken = 0
        self._counted = (0, 0, 0)
        self._ends_s: dict[int, float] = {}

    def leap(
        self, leap: Leap, num_steps: int, decodes: tuple[int, int], chunk: tuple[int, int], state: SchedulerState
    ) -> None:
        """The first `num_steps` steps of a leap, after their passes are done.

        `decodes` is (decodes in each step, sum of their contexts in tokens after the first step); `chunk` is (tokens of a
        prompt in the step, tokens of it computed before), (0, 0) if the leap computes no prompt.
        """
        num_decodes, context_tokens = decodes
        num_chunk_tokens, num_computed = chunk
        num_running, num_waiting, num_free = state.num_running, state.num_waiting, state.num_free_blocks
        start_s, linear_s, square_s, cube_s = leap.start_s, leap.linear_s, leap.square_s, leap.cube_s
        if num_chunk_tokens:
            self._chunks.add(pack_chunk(num_chunk_tokens, num_computed))
            counts = num_steps, num_decodes, num_chunk_tokens, 1, num_decodes, num_running, num_waiting, num_free, 0
            row = pack_leap(*counts, num_decodes, context_tokens, start_s, linear_s, square_s, cube_s)
        else:
            row = pack_decodes(
                num_steps,
                num_decodes,
                num_decodes,
                num_running,
                num_waiting,
                num_free,
                num_decodes,
                context_tokens,
                start_s,
                linear_s,
                square_s,
                cube_s,
            )
        self._leaps.add(row)

    def step(self, batch: Batch, start_s: float, duration_s: float, state: SchedulerState) -> None:
        """A pass that was scheduled by itself, after it is done."""
        shown = (state.num_running, state.num_waiting, state.num_free_blocks)
        self.one_pass(batch.shape, shown, len(batch.preempted), batch.num_decodes, start_s, duration_s)

    def records(self, state: SchedulerState) -> EngineRecords:
        """Everything that is not in the table of requests, in columns. Call it once, at the end: it forgets the leaps."""
        for request in (*state.running, *state.waiting):
            self.request(request, num_returned_tokens(request, state.num_collected), nan)
        return self._take(state)

    def records_so_far(self, state: SchedulerState) -> EngineRecords:
        """The same of the passes since it was last asked for, which are numbered anew, while requests go on."""
        state.history.cut(state.running, self._num_taken + self._leaps.num_passes - 1)
        return self._take(state)

    def _take(self, state: SchedulerState) -> EngineRecords:
        first_pass, before_s = self._num_taken, self._ends_s.get(self._num_taken - 1)
        blocks = self._leaps.blocks()
        num_passes = first_pass + sum(block.num_steps for block in blocks)
        history = state.history.take(num_passes)
        leaps = LeapRecords(blocks, self._chunks.rows(), _decode_stretches(history, state.config, first_pass))
        steps, late_s = self._late_tokens(leaps, history)
        self._keep_ends(leaps, state)
        self._leaps, self._chunks, self._num_taken = LeapLog(), RowLog(CHUNK), num_passes
        queries, hits, evictions = self._counted
        self._counted = (state.prefix_cache_queries, state.prefix_cache_hits, state.num_evictions)
        return EngineRecords(
            leaps=leaps,
            gaps=StepGaps(leaps, steps, late_s, before_s),
            prefix_cache_queries=state.prefix_cache_queries - queries,
            prefix_cache_hits=state.prefix_cache_hits - hits,
            num_evictions=state.num_evictions - evictions,
            offload=None,
            stored=None,
            lora=None,
            swaps=None,
            speculation=None,
            stage_busy_s=None,
        )

    def _late_tokens(self, leaps: LeapRecords, history: Taken) -> tuple[Ints, Floats]:
        """The steps of tokens that came late or never, though they were counted, and the gaps before those that came."""
        first_pass = self._num_taken
        steps = np.sort(np.array([token.step for token in history.late] + history.lost, dtype=np.int64)) - first_pass
        late = [(token.step, token.step_before) for token in (*history.late, *history.resumed)]
        if not late:
            return steps, np.zeros(0)
        came, before = np.array(late, dtype=np.int64).T - first_pass
        before_s = leaps.ends_of(np.maximum(before, 0))
        for row in np.flatnonzero(before < 0).tolist():
            before_s[row] = self._ends_s[int(before[row]) + first_pass]
        return steps, np.asarray(leaps.ends_of(came) - before_s)

    def _keep_ends(self, leaps: LeapRecords, state: SchedulerState) -> None:
        """When those passes ended after which a token is yet to come, and the last one of all."""
        first_pass, num_passes = self._num_taken, self._num_taken + leaps.num_passes
        paused = [request.sampled_pass for request in (*state.waiting, *state.prefills) if request.num_sampled_tokens]
        wanted = {*paused, *state.history.asked_for_again, num_passes - 1}
        kept_s = {number: end_s for number, end_s in self._ends_s.items() if number in wanted}
        new = sorted(number for number in wanted if number >= first_pass)
        ends_s = leaps.ends_of(np.array(new, dtype=np.int64) - first_pass).tolist()
        self._ends_s = kept_s | dict(zip(new, ends_s, strict=True))


def _decode_stretches(history: Taken, config: SchedulerConfig, first_pass: int) -> DecodeStretches:
    delays = tuple(delay for delay in config.passing_delays if delay is not None)
    return DecodeStretches(history.stretches, config.block_size, len(config.kv_groups), delays, first_pass)
