"""The device: stages in a row, each of which runs one batch after the other."""

from math import inf
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
    """Steps of a slot's decodes and nothing else."""

    __slots__ = ()

    def count(self, num_decodes: int) -> None:
        """From now on so many decode."""
        raise NotImplementedError

    def run(self, context_tokens: float, start_s: float) -> float:
        """Run one that begins then, as the device runs a batch; how long it takes, after which the last stage is free."""
        raise NotImplementedError

    def forget(self) -> None:
        """Steps take other times from now on."""
        raise NotImplementedError


class WholeDecodes(DecodesAlone):
    """Those of a device of one stage."""

    __slots__ = ("_curve", "_device", "_stage")
    _curve: DecodeCurve

    def __init__(self, device: "Device") -> None:
        self._device = device
        self._stage = device.stages[0]

    def count(self, num_decodes: int) -> None:
        self._curve = self._device.curve(num_decodes)

    def run(self, context_tokens: float, start_s: float) -> float:
        duration_s = self._curve.at(context_tokens)
        self._stage.free_s = start_s + duration_s
        return duration_s

    def forget(self) -> None:
        """The curve is asked for each time."""


class StagedSteps:
    """Steps of so many decodes on each stage, and how long their message to the next one takes; nothing behind the last."""

    __slots__ = ("hops_s", "stages")

    def __init__(self, times: StagedStepTime, num_stages: int, num_decodes: int) -> None:
        shape = StepShape(num_decodes, 0, (), num_decodes)
        stages = range(num_stages)
        self.stages = [DecodeSteps(times.stage_curve(number, num_decodes), num_decodes) for number in stages]
        self.hops_s = [times.hop_s(number, shape) if number + 1 < num_stages else 0.0 for number in stages]


class Passage:
    """A slot's decodes on a stage: the parabola of its seconds, as a Panel has it, and how long their message to the `following` one takes."""

    __slots__ = ("bend_s", "first_s", "first_tokens", "following", "hop_s", "slope_s", "stage")

    def __init__(self, stage: Stage, following: "Passage | None") -> None:
        self.stage = stage
        self.following = following
        self.first_tokens = self.first_s = self.slope_s = self.bend_s = self.hop_s = 0.0


class StagedDecodes(DecodesAlone):
    """Those of several stages; the parabolas hold from `_from_tokens` to before `_to_tokens`."""

    __slots__ = ("_device", "_first", "_from_tokens", "_num_decodes", "_to_tokens")

    def __init__(self, device: "Device") -> None:
        self._device = device
        following: Passage | None = None
        for stage in reversed(device.stages):
            first = following = Passage(stage, following)
        self._first = first
        self._num_decodes = 0
        self._from_tokens = self._to_tokens = 0.0

    def count(self, num_decodes: int) -> None:
        if num_decodes != self._num_decodes:
            self._num_decodes = num_decodes
            self._from_tokens = self._to_tokens = 0.0

    def forget(self) -> None:
        self._num_decodes = 0
        self._from_tokens = self._to_tokens = 0.0

    def run(self, context_tokens: float, start_s: float) -> float:
        if not self._from_tokens <= context_tokens < self._to_tokens:
            self._fit(context_tokens)
        end_s = ready_s = start_s
        one: Passage | None = self._first
        while one is not None:  # compiled, half the time of a list
            stage, tokens = one.stage, context_tokens - one.first_tokens
            stage_s = one.first_s + tokens * (one.slope_s + tokens * one.bend_s)
            end_s = stage.free_s = max(ready_s, stage.free_s) + stage_s
            stage.busy_s += stage_s
            ready_s = end_s + one.hop_s
            one = one.following
        return end_s - start_s

    def _fit(self, context_tokens: float) -> None:
        """Take the panels of these contexts, or where a stage has none what its curve says of them alone."""
        steps = self._device.staged(self._num_decodes)
        self._from_tokens, self._to_tokens = -inf, inf
        number = 0
        one: Passage | None = self._first
        while one is not None:
            panel = steps.stages[number].panel(context_tokens)
            one.first_tokens, one.first_s = panel.first_tokens, panel.first_s
            one.slope_s, one.bend_s = panel.slope_s, panel.bend_s
            one.hop_s = steps.hops_s[number]
            self._from_tokens = max(self._from_tokens, panel.first_tokens)
            self._to_tokens = min(self._to_tokens, panel.end_tokens)
            number += 1
            one = one.following


class Device:
    """When a batch can begin, and when each stage begins and ends it. Several stages are timed by a StagedStepTime."""

    def __init__(self, step_time: StepTimeModel, num_stages: int, now_s: float) -> None:
        self._step_time = step_time
        self._curves: dict[int, DecodeCurve] = {}
        self._staged: dict[int, StagedSteps] = {}
        self._alone: list[DecodesAlone] = []
        self.stages = [Stage(now_s) for _ in range(num_stages)]

    def use(self, step_time: StepTimeModel) -> None:
        """Steps take other times from now on."""
        self._step_time = step_time
        self._curves, self._staged = {}, {}
        for decodes in self._alone:
            decodes.forget()

    @property
    def has_stages(self) -> bool:
        return len(self.stages) > 1

    @property
    def busy_s(self) -> list[float]:
        """How long each stage has run by itself."""
        return [stage.busy_s for stage in self.stages]

    def decodes_alone(self) -> DecodesAlone:
        """The steps of one more slot's decodes."""
        decodes = StagedDecodes(self) if self.has_stages else WholeDecodes(self)
        self._alone.append(decodes)
        return decodes

    def curve(self, num_decodes: int) -> DecodeCurve:
        """How long steps of so many decodes take on a single stage."""
        found = self._curves.get(num_decodes)
        if found is None:
            found = self._curves[num_decodes] = self._step_time.decode_curve(num_decodes)
        return found

    def staged(self, num_decodes: int) -> StagedSteps:
        """How long steps of so many decodes take on each stage."""
        found = self._staged.get(num_decodes)
        if found is None:
            times = cast("StagedStepTime", self._step_time)
            found = self._staged[num_decodes] = StagedSteps(times, len(self.stages), num_decodes)
        return found

    def begins_s(self, batch: Batch, now_s: float) -> float:
        """When the first stage is free, and the tokens that the batch feeds in have been sampled; an empty one comes last."""
        start_s = max(now_s, self.stages[-1 if batch.is_empty else 0].free_s)
        if self.has_stages:
            start_s = max(start_s, batch.sampled_s)
            for row in batch.rows:
                start_s = max(start_s, row.progress.sampled_s)
        return start_s

    def wait(self, start_s: float, until_s: float) -> float:
        """KV is copied ahead of a batch, an empty one too; nothing else runs until that is done."""
        if until_s > start_s:
            self.stages[0].free_s = until_s
        return until_s

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
        decodes = self.staged(shape.num_decodes) if only_decodes else None
        ready_s = batch.start_s
        for number, stage in enumerate(self.stages):
            begun_s = max(ready_s, stage.free_s)
            if decodes is None:
                stage_s = _stage_s(times, number, shape)
            else:
                stage_s = decodes.stages[number].seconds(shape.decode_context_tokens)
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
