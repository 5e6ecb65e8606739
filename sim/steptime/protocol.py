"""What the engine asks of a step-time model: plain numbers in, seconds out."""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


class StepShape(NamedTuple):
    """One step's work, without any request in it.

    A request with one scheduled token is a decode (vLLM's own test for a uniform batch); the others are chunks of
    `(num_scheduled_tokens, num_computed_tokens before the step)`. Contexts count the tokens scheduled in this step.
    """

    num_decodes: int
    decode_context_tokens: int
    chunks: tuple[tuple[int, int], ...]
    num_sampled: int

    @property
    def num_tokens(self) -> int:
        num_tokens = self.num_decodes
        for chunk_tokens, _ in self.chunks:
            num_tokens += chunk_tokens
        return num_tokens

    @property
    def num_chunk_tokens(self) -> int:
        return self.num_tokens - self.num_decodes


class DecodeCurve(Protocol):
    """Seconds of a step of a fixed number of decodes and nothing else, by the sum of their contexts."""

    def at(self, context_tokens: float) -> float:
        """Seconds at one sum of contexts."""
        ...


class StepTimeModel(Protocol):
    """Seconds that the engine is busy with a step. Pure: the same shape takes the same time."""

    def step_s(self, shape: StepShape) -> float:
        """Duration of one step of at least one token."""
        ...

    def decode_curve(self, num_decodes: int) -> DecodeCurve:
        """Steps that decode `num_decodes` requests: at a context sum c, `step_s(StepShape(num_decodes, c, (), num_decodes))`."""
        ...


class StagedStepTime(StepTimeModel, Protocol):
    """Of an engine with pipeline stages, numbered from 0 on; `step_s` is that of a step which waits for no stage."""

    def stage_s(self, stage: int, shape: StepShape) -> float:
        """Seconds that a stage takes for its part of a step."""
        ...

    def hop_s(self, stage: int, shape: StepShape) -> float:
        """Seconds from the end of a stage to the next one's beginning."""
        ...
