"""How long data-parallel ranks with pipeline stages take for a step, stage by stage, and for their messages."""

from typing import Final, cast

from sim.engine.leaps import DecodeSteps
from sim.engine.rank_steps import MOST_KEPT, RankSteps, dummy_batch
from sim.steptime.graphs import GraphDispatch
from sim.steptime.protocol import (
    AgreedStagedStepTime,
    Agreement,
    DecodeCurve,
    StagedStepTime,
    StepShape,
    StepTimeModel,
)

DUMMY_BATCH: Final = dummy_batch()


class StagedDecoding:
    """Ranks that only decode, so many requests each, or run a dummy, 0: what they agree on; for each stage each rank's steps, and how long messages take."""

    __slots__ = ("agreement", "hops_s", "steps")

    def __init__(self, agreement: Agreement | None, steps: list[list[DecodeSteps]], hops_s: list[float]) -> None:
        self.agreement = agreement
        self.steps = steps
        self.hops_s = hops_s


class StagedTimes:
    """Step times of ranks together. Without a `dispatch` nobody pads, and step times know of no other rank."""

    def __init__(self, step_time: StepTimeModel, dispatch: GraphDispatch | None, num_stages: int) -> None:
        self._step_time = step_time
        self._num_stages = num_stages
        self._ranks = RankSteps(step_time, dispatch, DUMMY_BATCH)
        self._steps: dict[tuple[int, int, Agreement | None], DecodeSteps] = {}
        self._decoding: dict[tuple[int, ...], StagedDecoding] = {}

    def agreement(self, shapes: list[StepShape]) -> Agreement | None:
        """That of ranks that compute these, dummy batches included."""
        return self._ranks.agreement(shapes)

    def stage_s(self, stage: int, shape: StepShape, agreement: Agreement | None) -> float:
        """How long a rank's stage takes by itself."""
        if not shape.chunks and shape.num_sampled == shape.num_decodes:
            return self._steps_of(stage, shape.num_decodes, agreement).seconds(shape.decode_context_tokens)
        if agreement is None:
            return cast("StagedStepTime", self._step_time).stage_s(stage, shape)
        return cast("AgreedStagedStepTime", self._step_time).agreed_stage_s(stage, shape, agreement)

    def hop_s(self, stage: int, shape: StepShape, agreement: Agreement | None) -> float:
        """How long its message to the next one takes."""
        if agreement is None:
            return cast("StagedStepTime", self._step_time).hop_s(stage, shape)
        return cast("AgreedStagedStepTime", self._step_time).agreed_hop_s(stage, shape, agreement)

    def decoding(self, counts: list[int]) -> StagedDecoding:
        """Ranks that only decode so many, or run a dummy."""
        key = tuple(counts)
        found = self._decoding.get(key)
        if found is None:
            if len(self._decoding) >= MOST_KEPT:
                self._decoding.clear()
            found = self._decoding[key] = self._new_decoding(counts)
        return found

    def _new_decoding(self, counts: list[int]) -> StagedDecoding:
        shapes = [StepShape(count, 0, (), count) if count else DUMMY_BATCH for count in counts]
        agreement = self.agreement(shapes)
        steps: list[list[DecodeSteps]] = []
        hops_s: list[float] = []
        for stage in range(self._num_stages):
            steps.append([self._steps_of(stage, shape.num_decodes, agreement) for shape in shapes])
            hop_s = 0.0
            for count, shape in zip(counts, shapes, strict=True):
                if count and stage + 1 < self._num_stages:
                    hop_s = max(hop_s, self.hop_s(stage, shape, agreement))
            hops_s.append(hop_s)
        return StagedDecoding(agreement, steps, hops_s)

    def _steps_of(self, stage: int, num_decodes: int, agreement: Agreement | None) -> DecodeSteps:
        key = (stage, num_decodes, agreement)
        found = self._steps.get(key)
        if found is None:
            if len(self._steps) >= MOST_KEPT:
                self._steps.clear()
            found = self._steps[key] = DecodeSteps(self._curve(stage, num_decodes, agreement), num_decodes)
        return found

    def _curve(self, stage: int, num_decodes: int, agreement: Agreement | None) -> DecodeCurve:
        if agreement is None:
            return cast("StagedStepTime", self._step_time).stage_curve(stage, num_decodes)
        return cast("AgreedStagedStepTime", self._step_time).agreed_stage_curve(stage, num_decodes, agreement)
