"""The device: stages in a row, each of which runs one batch after the other."""

from sim.engine.walking.batch import Batch
from sim.engine.walking.modes import Modes
from sim.steptime.protocol import StepTimeModel


class Device:
    """When a batch can begin, and when each stage begins and ends it; a single stage takes what `step_time` says."""

    def __init__(self, step_time: StepTimeModel, modes: Modes, now_s: float) -> None:
        assert modes.num_stages == 1 or modes.stages is not None, "several stages are timed by `stages`"
        self.step_time = step_time
        self._stages = modes.stages
        self._free_s = [now_s] * modes.num_stages

    def begins_s(self, batch: Batch, now_s: float) -> float:
        """When the first stage is free, and the tokens that the batch feeds in have been sampled; an empty one comes last."""
        start_s = max(now_s, self._free_s[0] if batch.rows else self._free_s[-1])
        if len(self._free_s) > 1:
            for row in batch.rows:
                start_s = max(start_s, row.progress.sampled_s)
        return start_s

    def run(self, batch: Batch, start_s: float) -> None:
        """Run a batch that begins then: its times are set. An empty one takes no time."""
        batch.start_s = batch.end_s = start_s
        shape = batch.shape
        if shape is None:
            return
        if self._stages is None:
            batch.duration_s = self.step_time.step_s(shape)
            batch.end_s = self._free_s[0] = start_s + batch.duration_s
        else:
            ready_s, hop_s = start_s, self._stages.hop_s(shape)
            for stage in range(len(self._free_s)):
                begun_s = max(ready_s, self._free_s[stage])
                batch.end_s = self._free_s[stage] = begun_s + self._stages.stage_s(stage, shape)
                batch.stages_s.append((begun_s, batch.end_s))
                ready_s = batch.end_s + hop_s
            batch.duration_s = batch.end_s - start_s
            for row in batch.rows:
                if row.samples:
                    row.progress.sampled_s = batch.end_s
