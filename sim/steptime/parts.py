"""The parts of a step's time: by operator, and as prefill, decode and host."""

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import numpy as np

from sim.steptime.protocol import FloatArray

Bound = Literal["compute", "memory", "link", "host"]
BOUNDS: tuple[Bound, ...] = ("compute", "memory", "link", "host")


class OperatorTime(NamedTuple):
    """Seconds of one kind of kernel in a step, as far as prefill and as far as decode causes them, and its bound: the
    larger term of its roofline. Time in which the GPU waits is bound by the host.
    """

    operator: str
    bound: Bound
    prefill_s: float
    decode_s: float


class StepParts(NamedTuple):
    """Kernels for prompts, kernels for decodes, and the time in which no kernel runs; they add up to the step.

    `bound` has the largest share of the step; None if the model has no resources.
    """

    prefill_s: float
    decode_s: float
    host_s: float
    bound: Bound | None


class DecodeParts(NamedTuple):
    """The decode parts of steps that decode as many requests each and nothing else, and their bounds as places in BOUNDS."""

    decode_s: FloatArray
    bound: "np.ndarray[tuple[int], np.dtype[np.int64]] | None"


def split(operator: str, bound: Bound, seconds: float, decode_share: float) -> OperatorTime:
    """A kernel over tokens of both kinds."""
    return OperatorTime(operator, bound, seconds * (1 - decode_share), seconds * decode_share)


def step_parts(times: Iterable[OperatorTime]) -> StepParts:
    """The parts of a step that is made up of these."""
    prefill_s = decode_s = host_s = 0.0
    by_bound: dict[Bound, float] = dict.fromkeys(BOUNDS, 0.0)
    for _, bound, of_prefill_s, of_decode_s in times:
        by_bound[bound] += of_prefill_s + of_decode_s
        if bound == "host":
            host_s += of_prefill_s + of_decode_s
        else:
            prefill_s += of_prefill_s
            decode_s += of_decode_s
    return StepParts(prefill_s, decode_s, host_s, largest(by_bound))


def largest(by_bound: Mapping[Bound, float]) -> Bound:
    """The bound with the most seconds; of equals the first."""
    return max(BOUNDS, key=lambda bound: by_bound[bound])
