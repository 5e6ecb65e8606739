"""Steps of a roofline that wait for a link beside what they compute: the part that is alike whatever they wait for."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from sim.steptime.parts import BOUNDS, DecodeParts, OperatorTime, StepParts, split, step_parts
from sim.steptime.protocol import Agreement, DecodeCurve, FloatArray, StepShape
from sim.steptime.roofline import RooflineStepTime


class WaitingStepTime:
    """A roofline's steps, and what `waits_s` says that they wait: by their shape, by how long they take without, and by what ranks agreed on."""

    def __init__(self, model: RooflineStepTime, waits_for: str) -> None:
        self._model = model
        self._waits_for = waits_for
        self.decode_curve: Callable[[int], DecodeCurve] = cache(self._time_decodes)

    def waits_s(self, shape: StepShape, step_s: float, agreement: Agreement | None = None) -> float:
        """Seconds that a step of `step_s` waits."""
        raise NotImplementedError

    def step_s(self, shape: StepShape) -> float:
        """Duration of the step."""
        seconds = self._model.step_s(shape)
        return seconds + self.waits_s(shape, seconds)

    def agreed_s(self, shape: StepShape, agreement: Agreement) -> float:
        """That of a rank in lock step with others."""
        seconds = self._model.agreed_s(shape, agreement)
        return seconds + self.waits_s(shape, seconds, agreement)

    def agreed_curve(self, num_decodes: int, agreement: Agreement) -> DecodeCurve:
        """That of a rank in lock step with others."""
        return self._waiting(self._model.agreed_curve(num_decodes, agreement), num_decodes, agreement)

    def explain(self, shape: StepShape) -> list[OperatorTime]:
        """The operators of the step, and what they wait for."""
        waits_s = self.waits_s(shape, self._model.step_s(shape))
        return [*self._model.explain(shape), split(self._waits_for, "link", waits_s, shape.decode_share)]

    def parts(self, shape: StepShape) -> StepParts:
        """Prefill, decode and host of the step; waiting is split by tokens."""
        return step_parts(self.explain(shape))

    def decode_parts(self, num_decodes: int, context_tokens: FloatArray) -> DecodeParts:
        """The decode parts of steps that decode so many requests and nothing else, by the sums of their contexts."""
        decode_s, bound = self._model.decode_parts(num_decodes, context_tokens)
        assert bound is not None, "a roofline knows its bounds"
        curve = self._model.decode_curve(num_decodes)
        waits_s = np.array(
            [self._decode_waits_s(num_decodes, tokens, curve.at(tokens)) for tokens in context_tokens.tolist()]
        )
        return DecodeParts(decode_s + waits_s, np.where(waits_s > decode_s, BOUNDS.index("link"), bound))

    def _time_decodes(self, num_decodes: int) -> DecodeCurve:
        return self._waiting(self._model.decode_curve(num_decodes), num_decodes, None)

    def _waiting(self, curve: DecodeCurve, num_decodes: int, agreement: Agreement | None) -> DecodeCurve:
        return WaitingCurve(
            curve, lambda tokens, seconds: self._decode_waits_s(num_decodes, tokens, seconds, agreement)
        )

    def _decode_waits_s(
        self, num_decodes: int, context_tokens: float, step_s: float, agreement: Agreement | None = None
    ) -> float:
        return self.waits_s(StepShape(num_decodes, int(context_tokens), (), num_decodes), step_s, agreement)


class WaitingCurve(NamedTuple):
    """A DecodeCurve, and what its steps wait by their context and their length."""

    curve: DecodeCurve
    waits_s: Callable[[float, float], float]

    def at(self, context_tokens: float) -> float:
        """Seconds at one sum of contexts."""
        seconds = self.curve.at(context_tokens)
        return seconds + self.waits_s(context_tokens, seconds)
