"""Step times multiplied by a factor, to forecast under step-time errors."""

from typing import NamedTuple, cast

from sim.steptime.protocol import (
    AgreedStagedStepTime,
    AgreedStepTime,
    Agreement,
    DecodeCurve,
    StagedStepTime,
    StepShape,
    StepTimeModel,
)


class Perturbation(NamedTuple):
    """Factors on the time of decode-only steps and of steps with prefill."""

    decode: float = 1.0
    prefill: float = 1.0


AS_MODELLED = Perturbation()


class ScaledCurve(NamedTuple):
    """A DecodeCurve times a factor."""

    curve: DecodeCurve
    factor: float

    def at(self, context_tokens: float) -> float:
        return self.curve.at(context_tokens) * self.factor


class PerturbedStepTime:
    """A StepTimeModel that scales another, with stages and messages, or what ranks agree on, where it has them."""

    def __init__(self, model: StepTimeModel, perturbation: Perturbation) -> None:
        self._model = model
        self._decode, self._prefill = perturbation

    def step_s(self, shape: StepShape) -> float:
        return self._model.step_s(shape) * self._factor(shape)

    def stage_s(self, stage: int, shape: StepShape) -> float:
        return cast("StagedStepTime", self._model).stage_s(stage, shape) * self._factor(shape)

    def stage_curve(self, stage: int, num_decodes: int) -> DecodeCurve:
        return ScaledCurve(cast("StagedStepTime", self._model).stage_curve(stage, num_decodes), self._decode)

    def hop_s(self, stage: int, shape: StepShape) -> float:
        return cast("StagedStepTime", self._model).hop_s(stage, shape) * self._factor(shape)

    def _factor(self, shape: StepShape) -> float:
        return self._prefill if shape.chunks else self._decode

    def decode_curve(self, num_decodes: int) -> DecodeCurve:
        return ScaledCurve(self._model.decode_curve(num_decodes), self._decode)

    def agreed_s(self, shape: StepShape, agreement: Agreement) -> float:
        return cast("AgreedStepTime", self._model).agreed_s(shape, agreement) * self._factor(shape)

    def agreed_stage_s(self, stage: int, shape: StepShape, agreement: Agreement) -> float:
        of_stages = cast("AgreedStagedStepTime", self._model)
        return of_stages.agreed_stage_s(stage, shape, agreement) * self._factor(shape)

    def agreed_stage_curve(self, stage: int, num_decodes: int, agreement: Agreement) -> DecodeCurve:
        of_stages = cast("AgreedStagedStepTime", self._model)
        return ScaledCurve(of_stages.agreed_stage_curve(stage, num_decodes, agreement), self._decode)

    def agreed_hop_s(self, stage: int, shape: StepShape, agreement: Agreement) -> float:
        of_stages = cast("AgreedStagedStepTime", self._model)
        return of_stages.agreed_hop_s(stage, shape, agreement) * self._factor(shape)

    def agreed_curve(self, num_decodes: int, agreement: Agreement) -> DecodeCurve:
        return ScaledCurve(cast("AgreedStepTime", self._model).agreed_curve(num_decodes, agreement), self._decode)


def all_off_by(factor: float) -> Perturbation:
    """Every step longer by the same factor."""
    return Perturbation(factor, factor)
