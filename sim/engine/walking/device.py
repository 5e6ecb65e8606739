"""The device: stages in a row, each of which runs one batch after the other."""

from itertools import pairwise
from typing import cast

from sim.engine.leaps import DecodeSteps
from sim.engine.walking.batch import Batch
from sim.steptime.pipeline import PipelineStepTime
from sim.steptime.protocol import DecodeCurve, StagedStepTime, StepShape, StepTimeModel


class Stage:
    """It is free from `free_s` on, and has run for `busy_s` by itself."""

    __slots__ = ("busy_s", "free_s")

    def __init__(self, free_s: float) -> None:
        self.free_s = free_s
        self.busy_s = 0.0


class DecodesAlone:
    """Steps of so many decodes and nothing else."""

    __slots__ = ()

    def run(self, context_tokens: float, start_s: float) -> float:
        """Run one that begins then, as the device runs a batch; how long it takes, after which the last stage is free."""
        raise NotImplementedError


class WholeDecodes(DecodesAlone):
    """Those of a device of one stage."""

    __slots__ = ("_curve", "_stage")

    def __init__(self, curve: DecodeCurve, stage: Stage) -> None:
        self._curve = curve
        self._stage = stage

    def run(self, context_tokens: float, start_s: float) -> float:
        duration_s = self._curve.at(context_tokens)
        self._stage.free_s = start_s + duration_s
        return duration_s


class StageDecodes:
    """Those of a stage: how long it takes by the sum of contexts, and how long its message to the `following` one."""

    __slots__ = ("following", "hop_s", "stage", "steps")

    def __init__(self, stage: Stage, steps: DecodeSteps, hop_s: float) -> None:
        self.stage = stage
        self.steps = steps
        self.hop_s = hop_s
        self.following: StageDecodes | None = None


class StagedDecodes(DecodesAlone):
    """Those of several stages."""

    __slots__ = ("_first", "stages")

    def __init__(self, times: StagedStepTime, stages: list[Stage], num_decodes: int) -> None:
        shape = StepShape(num_decodes, 0, (), num_decodes)
        self.stages: list[StageDecodes] = []
        for number, stage in enumerate(stages):
            hop_s = times.hop_s(number, shape) if stage is not stages[-1] else 0.0
            steps = DecodeSteps(times.stage_curve(number, num_decodes), num_decodes)
            self.stages.append(StageDecodes(stage, steps, hop_s))
        for one, following in pairwise(self.stages):
            one.following = following
        self._first = self.stages[0]

    def run(self, context_tokens: float, start_s: float) -> float:
        end_s = ready_s = start_s
        one: StageDecodes | None = self._first
        while one is not None:  # compiled, half the time of a list
            stage, stage_s = one.stage, one.steps.seconds(context_tokens)
            end_s = stage.free_s = max(ready_s, stage.free_s) + stage_s
            stage.busy_s += stage_s
            ready_s = end_s + one.hop_s
            one = one.following
        return end_s - start_s


class Device:
    """When a batch can begin, and when each stage begins and ends it. Several stages are timed by a StagedStepTime."""

    def __init__(self, step_time: StepTimeModel, num_stages: int, now_s: float) -> None:
        self._step_time = step_time
        self._whole: dict[int, WholeDecodes] = {}
        self._staged: dict[int, StagedDecodes] = {}
        self.stages = [Stage(now_s) for _ in range(num_stages)]

    def use(self, step_time: StepTimeModel) -> None:
        """Steps take other times from now on."""
        self._step_time = step_time
        self._whole, self._staged = {}, {}

    @property
    def has_stages(self) -> bool:
        return len(self.stages) > 1

    @property
    def busy_s(self) -> list[float]:
        """How long each stage has run by itself."""
        return [stage.busy_s for stage in self.stages]

    def decodes(self, num_decodes: int) -> DecodesAlone:
        """Steps of so many decodes and nothing else."""
        if self.has_stages:
            return self._staged_decodes(num_decodes)
        found = self._whole.get(num_decodes)
        if found is None:
            curve = self._step_time.decode_curve(num_decodes)
            found = self._whole[num_decodes] = WholeDecodes(curve, self.stages[0])
        return found

    def _staged_decodes(self, num_decodes: int) -> StagedDecodes:
        found = self._staged.get(num_decodes)
        if found is None:
            times = cast("StagedStepTime", self._step_time)
            found = self._staged[num_decodes] = StagedDecodes(times, self.stages, num_decodes)
        return found

    def begins_s(self, batch: Batch, now_s: float) -> float:
        """When the first stage is free, and the tokens that the batch feeds in have been sampled; an empty one comes last."""
        start_s = max(now_s, self.stages[-1 if batch.is_empty else 0].free_s)
        if self.has_stages:
            start_s = max(start_s, batch.sampled_s)
            for row in batch.rows:
                start_s = max(start_s, row.progress.sampled_s)
        return start_s

    def copy(self, start_s: float, copy_s: float) -> float:
        """Copy KV ahead of a batch; when that is done. Nothing else runs meanwhile."""
        if copy_s > 0.0:
            self.stages[0].free_s = start_s + copy_s
        return start_s + copy_s

    def run(self, batch: Batch, start_s: float) -> None:
        """Run a batch that begins then: its times are set. An empty one takes no time."""
        batch.start_s = batch.end_s = start_s
        shape = batch.shape
        if shape is None:
            return
        if len(self.stages) == 1:
            batch.duration_s = self._step_time.step_s(shape)
            batch.end_s = self.stages[0].free_s = start_s + batch.duration_s
            return
        self._pass_through(batch, shape)
        batch.duration_s = batch.end_s - start_s
        for row in batch.rows:
            if row.samples:
                row.progress.sampled_s = batch.end_s

    def _pass_through(self, batch: Batch, shape: StepShape) -> None:
        """Stage by stage: each begins when the message of the one before is there and the batch before has left it."""
        times, last_stage = cast("StagedStepTime", self._step_time), len(self.stages) - 1
        only_decodes = not shape.chunks and shape.num_sampled == shape.num_decodes and not shape.num_drafts
        decodes = self._staged_decodes(shape.num_decodes) if only_decodes else None
        ready_s = batch.start_s
        for number, stage in enumerate(self.stages):
            begun_s = max(ready_s, stage.free_s)
            if decodes is None:
                stage_s = _stage_s(times, number, shape)
            else:
                stage_s = decodes.stages[number].steps.seconds(shape.decode_context_tokens)
            batch.end_s = stage.free_s = begun_s + stage_s
            batch.stages_s.append((begun_s, batch.end_s))
            stage.busy_s += stage_s
            if number < last_stage:
                ready_s = batch.end_s + _hop_s(times, number, shape)


def _stage_s(times: StagedStepTime, stage: int, shape: StepShape) -> float:
    # compiled code calls a class's methods at once, and a protocol's by their names
    if isinstance(times, PipelineStepTime):
        return times.stage_s(stage, shape)
    return times.stage_s(stage, shape)


def _hop_s(times: StagedStepTime, after_stage: int, shape: StepShape) -> float:
    if isinstance(times, PipelineStepTime):
        return times.hop_s(after_stage, shape)
    return times.hop_s(after_stage, shape)
