"""A data-parallel rank with pipeline stages, in lock step with its server's other ranks.

Its calls and batches are those of `step_with_batch_queue`, as of an engine by itself. When its batches run is known once all ranks have
launched the same step (sim/engine/staged_group.py), which may be after calls that came behind.
"""

import math
from collections.abc import Sequence

from sim.engine.config import SchedulerConfig
from sim.engine.request import Request
from sim.engine.walking.batch import Batch
from sim.engine.walking.calls_ahead import MOST_CALLS, CallsAhead, Turn
from sim.engine.walking.modes import Modes
from sim.engine.walking.rank import WalkingRank
from sim.engine.walking.recorder import WalkRecorder
from sim.engine.walking.step_log import WalkLogger
from sim.steptime.protocol import StepShape, StepTimeModel


class StagedRank(WalkingRank):
    """`awaits_oldest` is whether the last call waits for the oldest batch in flight; the last one that has its times ends at `last_end_s`.

    Invariant: the last batches in flight are `_untimed`, of which the first computes something.
    """

    awaits_oldest = False

    def __init__(
        self,
        config: SchedulerConfig,
        step_time: StepTimeModel,
        recorder: WalkRecorder,
        *,
        start_s: float,
        modes: Modes,
        num_keys: int = 0,
        log: WalkLogger | None = None,
    ) -> None:
        super().__init__(config, step_time, recorder, start_s=start_s, modes=modes, num_keys=num_keys, log=log)
        self._untimed: list[Batch] = []
        self.last_end_s = start_s

    @property
    def has_work(self) -> bool:
        """Whether it naps after a call that computed nothing."""
        return self.state.has_work

    def schedule(self, now_s: float, *, is_throttled: bool = False) -> StepShape | None:
        """Call the scheduler if it has work, and launch what it decides; None if that computes nothing."""
        self.now_s = now_s
        if not self.state.has_work:
            self.awaits_oldest = bool(self._in_flight)
            return None
        batch = self._schedule(is_throttled=is_throttled)
        self._enter(batch)
        goes_on = not batch.is_empty or self.state.has_work
        self.awaits_oldest = not goes_on or len(self._in_flight) == self._most_in_flight
        return batch.shape

    def _enter(self, batch: Batch) -> None:
        for request in batch.admitted:
            if math.isnan(request.first_scheduled_s):
                request.first_scheduled_s = self.now_s
        batch.start_s = self.now_s
        if self._log:
            self._log.launched(self.state, batch, self.now_s, self._in_flight)
        self._in_flight.append(batch)
        self._untimed.append(batch)
        self._time_empty()

    @property
    def fed_s(self) -> float:
        """When the tokens have been sampled that the next batch without times feeds in."""
        batch = self._untimed[0]
        fed_s = -math.inf
        if self._rotation is not None and batch.num_counted:
            fed_s = self._rotation.slot(batch.call).sampled_s
        for row in batch.rows:
            fed_s = max(fed_s, row.progress.sampled_s)
        return fed_s

    def run_stages(self, stages_s: list[tuple[float, float]]) -> None:
        """The next batch without times runs on its stages from then to then."""
        batch = self._untimed.pop(0)
        end_s = stages_s[-1][1]
        batch.stages_s = stages_s
        batch.start_s, batch.end_s = stages_s[0][0], end_s
        batch.duration_s = end_s - batch.start_s
        self.last_end_s = end_s
        self.ran(stages_s)
        if self._rotation is not None:
            self._rotation.slot(batch.call).sampled_s = end_s
        for row in batch.rows:
            if row.samples:
                row.progress.sampled_s = end_s
        self._note_times(batch)
        self._time_empty()

    def ran(self, stages_s: list[tuple[float, float]]) -> None:
        """Its stages were on a batch from then to then."""
        for number, stage in enumerate(self._device.stages):
            begun_s, ended_s = stages_s[number]
            stage.busy_s += ended_s - begun_s

    def _time_empty(self) -> None:
        """Batches that compute nothing are back behind those before them."""
        while self._untimed and self._untimed[0].is_empty:
            batch = self._untimed.pop(0)
            batch.start_s = batch.end_s = max(batch.start_s, self.last_end_s)
            self._note_times(batch)

    def _note_times(self, batch: Batch) -> None:
        if batch.did_nothing:
            return
        if self._log:
            self._log.timed(batch)
        if self._rotation is not None:
            self._recorder.batch(batch)

    @property
    def next_collect_s(self) -> float:
        """When the oldest batch in flight comes back, `inf` as long as that is not known."""
        return math.inf if len(self._untimed) == len(self._in_flight) else self._in_flight[0].end_s

    def take_back(self, now_s: float) -> Sequence[Request]:
        """The oldest batch in flight is back; who has finished with it."""
        self.now_s = now_s
        finished = self._take_in(self._in_flight[0])
        self.state.spare_batches.clear()  # nobody asks for them here
        return finished

    # -- calls that only decode, many at once ----------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether a call does nothing, nor waits for anything."""
        return not self._in_flight and not self.state.has_work

    @property
    def only_decodes(self) -> bool:
        """Whether calls do nothing but decode, all that run being counted, before a request comes or finishes; or nothing at all."""
        if self._rotation is None:
            return self.is_idle
        return not self._rotation.walked and (self.is_idle or self._scheduler.only_decodes)

    @property
    def may_finish_next(self) -> bool:
        """Whether anybody may finish with the oldest batch in flight."""
        return self._in_flight[0].may_finish

    @property
    def num_certain_calls(self) -> int:
        """How many calls only decode for certain and bring back no last token."""
        look_ahead, in_flight = self._look_ahead, self._in_flight
        if self.is_idle:
            return MOST_CALLS
        if look_ahead is None or len(in_flight) + 1 != self._most_in_flight:
            return 0
        most = look_ahead.num_certain(self.state.num_calls + 1, in_flight, is_plan=False)
        for number, batch in enumerate(in_flight):
            if batch.may_finish:
                return min(most, number)
        return most

    def calls_ahead(self) -> CallsAhead | None:
        """The next ones, none so far; None of a rank that idles."""
        if self.is_idle or self._look_ahead is None:
            return None
        return self._look_ahead.calls(
            self.state.num_calls + 1, self._in_flight, self.state.num_free_blocks, is_plan=False
        )

    @property
    def turns(self) -> list[Turn]:
        """The slots of these calls."""
        return self._look_ahead.turns if self._look_ahead is not None else []

    @property
    def next_place(self) -> int:
        """That of the first of them."""
        return self._rotation.place(self.state.num_calls + 1) if self._rotation is not None else 0

    @property
    def num_kv_groups(self) -> int:
        return len(self.state.config.kv_groups)

    def do_calls(self, ahead: CallsAhead, last_end_s: float) -> None:
        """Make calls whose times have been worked out, the last batch of which ends then."""
        self._do(ahead)
        self.last_end_s = last_end_s

    # --------------------------------------------------------------------------------------------------------------

    def pause(self, now_s: float) -> None:
        """What is left in flight computes nothing."""
        while self._in_flight:
            self.take_back(now_s)
