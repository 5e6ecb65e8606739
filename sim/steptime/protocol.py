"""What the engine asks of a step-time model: plain numbers in, seconds out."""

from collections.abc import Callable
from typing import Final, Literal, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
GraphKind = Literal["full", "piecewise", "none"]


class Agreement(NamedTuple):
    """What data-parallel ranks that step together agree on before a step: its CUDA graph, and the tokens of all of them.

    Each computes `num_tokens`, padding included; 0 where nobody pads, so that each computes its own. Of two `num_ubatches` one
    computes while the other's tokens are on their way to experts.
    """

    graph: GraphKind
    num_tokens: int
    num_all_tokens: int
    num_ubatches: int = 1


class StepShape(NamedTuple):
    """One step's work, without any request in it.

    A request with one scheduled token, or with one and drafts behind it, is a decode; the others are chunks of
    `(num_scheduled_tokens, num_computed_tokens before the step)`. Contexts count the tokens scheduled in this step, and those of decodes
    what is read of them: not what a GPU is spared of blocks that several have in common (common_reads.py).
    The decodes verify `num_drafts` drafts together.
    """

    num_decodes: int
    decode_context_tokens: int
    chunks: tuple[tuple[int, int], ...]
    num_sampled: int
    num_drafts: int = 0

    @property
    def num_tokens(self) -> int:
        return num_tokens_of(self)

    @property
    def num_chunk_tokens(self) -> int:
        return self.num_tokens - self.num_decodes - self.num_drafts

    @property
    def num_requests(self) -> int:
        return self.num_decodes + len(self.chunks)

    @property
    def decode_share(self) -> float:
        """Of the tokens, those of decodes, their drafts included."""
        return (self.num_decodes + self.num_drafts) / self.num_tokens


new_shape: Final = cast("Callable[..., StepShape]", tuple.__new__)


def shape_of(
    num_decodes: int,
    decode_context_tokens: int,
    chunks: tuple[tuple[int, int], ...],
    num_sampled: int,
    num_drafts: int = 0,
) -> StepShape:
    """A StepShape, made as tuples are: in compiled code the named tuple's own constructor takes half as long again."""
    return new_shape(StepShape, (num_decodes, decode_context_tokens, chunks, num_sampled, num_drafts))


def num_tokens_of(shape: StepShape) -> int:
    """Its tokens: a function, which compiled code calls in a fraction of the time of a named tuple's property."""
    num_decodes, _, chunks, _, num_drafts = shape
    num_tokens = num_decodes + num_drafts
    for chunk_tokens, _ in chunks:
        num_tokens += chunk_tokens
    return num_tokens


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


class AgreedStepTime(StepTimeModel, Protocol):
    """Of ranks in lock step."""

    def agreed_s(self, shape: StepShape, agreement: Agreement) -> float:
        """As `step_s`, of a rank under an agreement."""
        ...

    def agreed_curve(self, num_decodes: int, agreement: Agreement) -> DecodeCurve:
        """As `decode_curve`, of a rank under an agreement."""
        ...


class StagedStepTime(StepTimeModel, Protocol):
    """Of an engine with pipeline stages, numbered from 0 on; `step_s` is that of a step which waits for no stage."""

    def stage_s(self, stage: int, shape: StepShape) -> float:
        """Seconds that a stage takes for its part of a step."""
        ...

    def stage_curve(self, stage: int, num_decodes: int) -> DecodeCurve:
        """As `decode_curve`, of a stage's part."""
        ...

    def hop_s(self, stage: int, shape: StepShape) -> float:
        """Seconds from the end of a stage to the next one's beginning, the same at all contexts."""
        ...


class AgreedStagedStepTime(StagedStepTime, Protocol):
    """Of ranks in lock step, each with stages."""

    def agreed_stage_s(self, stage: int, shape: StepShape, agreement: Agreement) -> float:
        """As `stage_s`, of a rank under an agreement."""
        ...

    def agreed_stage_curve(self, stage: int, num_decodes: int, agreement: Agreement) -> DecodeCurve:
        """As `stage_curve`, of a rank under an agreement."""
        ...

    def agreed_hop_s(self, stage: int, shape: StepShape, agreement: Agreement) -> float:
        """As `hop_s`, of a rank under an agreement."""
        ...
