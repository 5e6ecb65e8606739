"""The parts of each step's time, computed from its work: prefill, decode and host."""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from sim.engine.records import Floats, Ints
from sim.engine.step_records import StepRecords
from sim.steptime.parts import BOUNDS, DecodeParts, StepParts
from sim.steptime.protocol import FloatArray, StepShape, StepTimeModel


@runtime_checkable
class TellsParts(Protocol):
    """A step-time model that can split its times into parts."""

    def parts(self, shape: StepShape) -> StepParts:
        """The parts of any step; they add up to `step_s`."""
        ...

    def decode_parts(self, num_decodes: int, context_tokens: FloatArray) -> DecodeParts:
        """The parts of many steps that only decode, the same number of requests each, by the sums of their contexts."""
        ...


class PartColumns(NamedTuple):
    """One entry a step. The parts add up to the step; NaN, with None as bound, if the model cannot split its times."""

    prefill_s: Floats
    decode_s: Floats
    host_s: Floats
    bound: NDArray[Any]


def step_parts(steps: StepRecords, step_time: StepTimeModel) -> PartColumns:
    """The parts of each step that was timed by this model; the host part is what the kernels leave."""
    if not isinstance(step_time, TellsParts):
        unknown = np.full(len(steps), np.nan)
        return PartColumns(unknown, unknown, unknown, np.full(len(steps), None))
    prefill_s, decode_s = np.zeros(len(steps)), np.zeros(len(steps))
    bound = np.full(len(steps), None, dtype=object)
    only_decodes = (steps.num_chunks == 0) & (steps.num_sampled == steps.num_decodes) & ~steps.num_drafts.any()
    for num_decodes, rows in _by_count(steps.num_decodes, np.flatnonzero(only_decodes)):
        decode_s[rows], places = step_time.decode_parts(num_decodes, steps.decode_context_tokens[rows].astype(float))
        bound[rows] = None if places is None else np.array(BOUNDS, dtype=object)[places]
    for row, shape in _shapes(steps, np.flatnonzero(~only_decodes)):
        prefill_s[row], decode_s[row], _, bound[row] = step_time.parts(shape)
    return PartColumns(prefill_s, decode_s, _rest(steps.end_s - steps.start_s, prefill_s + decode_s), bound)


def within_steps(parts: PartColumns, durations_s: Floats) -> PartColumns:
    """Of ranks in lock step: kernels are timed as if all ranks did the same, and took longer than a step in which others do less."""
    kernels_s = parts.prefill_s + parts.decode_s
    share = np.minimum(1.0, durations_s / np.maximum(kernels_s, ROUNDING))
    return parts._replace(
        prefill_s=parts.prefill_s * share, decode_s=parts.decode_s * share, host_s=np.maximum(parts.host_s, 0.0)
    )


ROUNDING = 1e-9
"""Relative to a step's duration: durations are differences of times, and those in a leap follow a parabola."""


def _rest(durations_s: Floats, kernels_s: Floats) -> Floats:
    """The rest of each step; 0 if it is no more than rounding."""
    rest_s = durations_s - kernels_s
    return np.where(np.abs(rest_s) <= ROUNDING * durations_s, 0.0, rest_s)


def _by_count(num_decodes: Ints, rows: Ints) -> Iterator[tuple[int, Ints]]:
    """The rows of steps that only decode, grouped by number of decodes."""
    order = rows[np.argsort(num_decodes[rows], kind="stable")]
    counts, firsts = np.unique(num_decodes[order], return_index=True)
    yield from zip(counts.tolist(), np.split(order, firsts[1:]), strict=True) if len(order) else ()


def _shapes(steps: StepRecords, rows: Ints) -> Iterator[tuple[int, StepShape]]:
    """What each of these steps computed."""
    chunks = list(zip(steps.chunk_tokens.tolist(), steps.chunk_computed_tokens.tolist(), strict=True))
    ends = np.cumsum(steps.num_chunks)[rows]
    columns = (rows, ends - steps.num_chunks[rows], ends, *(
        getattr(steps, name)[rows] for name in ("num_decodes", "decode_context_tokens", "num_sampled", "num_drafts")
    ))  # fmt: skip
    for row, first, end, num_decodes, context_tokens, *sampled in zip(*(c.tolist() for c in columns), strict=True):
        yield row, StepShape(num_decodes, context_tokens, tuple(chunks[first:end]), *sampled)
