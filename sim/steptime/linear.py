"""A step time that is linear in tokens and contexts: for tests, teaching and fitted models."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sim.specs.strict_yaml import NotNegative, Strict, read_yaml
from sim.steptime.parts import DecodeParts, StepParts
from sim.steptime.protocol import FloatArray, StepShape


class LinearFile(Strict):
    """The YAML of a linear step-time model."""

    kind: Literal["linear"]
    base_s: NotNegative
    per_token_s: NotNegative
    per_context_token_s: NotNegative


@dataclass(frozen=True, slots=True)
class LinearStepTime:
    """`base_s` + `per_token_s` x scheduled tokens + `per_context_token_s` x the requests' contexts after the step."""

    base_s: float
    per_token_s: float
    per_context_token_s: float

    def step_s(self, shape: StepShape) -> float:
        context_tokens = shape.decode_context_tokens + sum(tokens + computed for tokens, computed in shape.chunks)
        return self.base_s + self.per_token_s * shape.num_tokens + self.per_context_token_s * context_tokens

    def decode_curve(self, num_decodes: int) -> "LinearDecodeCurve":
        return LinearDecodeCurve(self.base_s + self.per_token_s * num_decodes, self.per_context_token_s)

    def parts(self, shape: StepShape) -> StepParts:
        """Each part by its own tokens and contexts; `base_s` is the host's, and no bound is known."""
        context_tokens = sum(tokens + computed for tokens, computed in shape.chunks)
        return StepParts(
            prefill_s=self.per_token_s * shape.num_chunk_tokens + self.per_context_token_s * context_tokens,
            decode_s=self.per_token_s * (shape.num_decodes + shape.num_drafts)
            + self.per_context_token_s * shape.decode_context_tokens,
            host_s=self.base_s,
            bound=None,
        )

    def decode_parts(self, num_decodes: int, context_tokens: FloatArray) -> DecodeParts:
        """The decode parts of steps that decode so many requests and nothing else, by the sums of their contexts."""
        return DecodeParts(self.per_token_s * num_decodes + self.per_context_token_s * context_tokens, None)


@dataclass(frozen=True, slots=True)
class LinearDecodeCurve:
    """A line over the sum of contexts."""

    constant_s: float
    per_context_token_s: float

    def at(self, context_tokens: float) -> float:
        return self.constant_s + self.per_context_token_s * context_tokens


def read_linear(path: Path) -> LinearStepTime:
    """The model in that YAML file. Raises ProfileError naming file, field and rule."""
    file = read_yaml(path, LinearFile)
    return LinearStepTime(file.base_s, file.per_token_s, file.per_context_token_s)
