"""The device: stages in a row, each of which runs one batch after the other."""

from typing import cast

from sim.engine.walking.batch import Batch
from sim.steptime.protocol import StagedStepTime, StepShape, StepTimeModel


class Device:
    """When a batch can begin, and when each stage begins and ends it. Several stages are timed by a StagedStepTime.

    `busy_s` is how long each stage has run by itself.
    """

    def __init__(self, step_time: StepTimeModel, num_stages: int, now_s: float) -> None:
        self.step_time = step_time
        self.busy_s = [0.0] * num_stages
        self._free_s = [now_s] * num_stages

    def begins_s(self, batch: Batch, now_s: float) -> float:
        """When the first stage is free, and the tokens that the batch feeds in have been sampled; an empty one comes last."""
        start_s = max(now_s, self._free_s[0] if batch.rows else self._free_s[-1])
        if len(self._free_s) > 1:
            for row in batch.rows:
                start_s = max(start_s, row.progress.sampled_s)
        return start_s

    def copy(self, start_s: float, copy_s: float) -> float:
        """Copy KV ahead of a batch; when that is done. Nothing else runs meanwhile."""
        if copy_s > 0.0:
            self._free_s[0] = start_s + copy_s
        return start_s + copy_s

    def run(self, batch: Batch, start_s: float) -> None:
        """Run a batch that begins then: its times are set. An empty one takes no time."""
        batch.start_s = batch.end_s = start_s
        shape = batch.shape
        if shape is None:
            return
        if len(self._free_s) == 1:
            batch.duration_s = self.step_time.step_s(shape)
            batch.end_s = self._free_s[0] = start_s + batch.duration_s
            return
        self._pass_through(batch, shape)
        batch.duration_s = batch.end_s - start_s
        for row in batch.rows:
            if row.samples:
                row.progress.sampled_s = batch.end_s

    def _pass_through(self, batch: Batch, shape: StepShape) -> None:
        """Stage by stage: each begins when the message of the one before is there and the batch before has left it."""
        times, last_stage = cast("StagedStepTime", self.step_time), len(self._free_s) - 1
        ready_s = batch.start_s
        for stage in range(last_stage + 1):
            begun_s, stage_s = max(ready_s, self._free_s[stage]), times.stage_s(stage, shape)
            batch.end_s = self._free_s[stage] = begun_s + stage_s
            batch.stages_s.append((begun_s, batch.end_s))
            self.busy_s[stage] += stage_s
            if stage < last_stage:
                ready_s = batch.end_s + times.hop_s(stage, shape)
