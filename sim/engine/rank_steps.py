"""Steps of data-parallel ranks in lock step: what the ranks agree on, how long each takes, and for how many steps the slowest stays it.

Mirrors vLLM's v1/worker/dp_utils.py (0.33), which is taken for all versions: the ranks run the smallest CUDA graph that any of
them could, all padded to the most tokens that any of them is padded to; where one runs without a graph, all do, and nobody pads.
"""

from collections.abc import Sequence
from typing import NamedTuple, cast

from sim.engine.leaps import DecodeSteps, Leap
from sim.steptime.graphs import GraphDispatch
from sim.steptime.protocol import AgreedStepTime, Agreement, DecodeCurve, GraphKind, StepShape, StepTimeModel

MOST_KEPT = 1 << 14
"""Of what was worked out: without graphs nearly every step has an agreement of its own."""
LEAST_FIRST: tuple[GraphKind, ...] = ("none", "piecewise", "full")


def dummy_batch(num_drafts: int = 0) -> StepShape:
    """What a rank computes that has nothing to do: one decode, of as many tokens as a decode can have."""
    return StepShape(1, 1 + num_drafts, (), 1, num_drafts)


class Constant(NamedTuple):
    """A DecodeCurve of steps that take the same time."""

    seconds: float

    def at(self, context_tokens: float) -> float:  # noqa: ARG002 - the interface
        return self.seconds


class Lane:
    """A rank that does the same in every step, but that contexts, whose sum this is, grow by `num_decodes`; 0 if it idles."""

    __slots__ = ("context_tokens", "curve", "num_decodes")

    def __init__(self, curve: DecodeCurve, context_tokens: int, num_decodes: int) -> None:
        self.curve = curve
        self.context_tokens = context_tokens
        self.num_decodes = num_decodes

    def at(self, step: int) -> float:
        """Seconds of that step, counted from 0."""
        return self.curve.at(self.context_tokens + step * self.num_decodes)


class RankSteps:
    """Step times of ranks together. Without a `dispatch` nobody pads, and step times know of no other rank."""

    def __init__(self, step_time: StepTimeModel, dispatch: GraphDispatch | None, dummy: StepShape) -> None:
        self.dummy = dummy
        self._step_time = step_time
        self._dispatch = dispatch
        self._steps: dict[tuple[int, Agreement | None], DecodeSteps] = {}
        self._agreements: dict[tuple[int, ...], Agreement | None] = {}
        self._idle: dict[Agreement | None, Lane] = {}

    def agreement(self, shapes: Sequence[StepShape]) -> Agreement | None:
        """That of ranks that compute these, dummy batches included."""
        dispatch = self._dispatch
        if dispatch is None:
            return None
        num_tokens, num_padded, least = 0, 0, len(LEAST_FIRST) - 1
        for shape in shapes:
            own_tokens = shape.num_tokens
            graph, padded = dispatch.dispatch(own_tokens, is_uniform_decode=dispatch.is_uniform(shape))
            num_tokens += own_tokens
            num_padded = max(num_padded, padded)
            least = min(least, LEAST_FIRST.index(graph))
        if least == 0:
            return Agreement("none", 0, num_tokens)
        return Agreement(LEAST_FIRST[least], num_padded, num_padded * len(shapes))

    def seconds(self, shapes: Sequence[StepShape], agreement: Agreement | None) -> list[float]:
        """How long each rank takes by itself."""
        if agreement is None:
            return [self._step_time.step_s(shape) for shape in shapes]
        found = []
        for num_decodes, context_tokens, chunks, num_sampled, num_drafts, _ in shapes:
            shape = StepShape(num_decodes, context_tokens, chunks, num_sampled, num_drafts, agreement)
            found.append(self._step_time.step_s(shape))
        return found

    def decode_agreement(self, counts: Sequence[int]) -> Agreement | None:
        """That of ranks that only decode so many, or idle: 0."""
        key = tuple(counts)
        if key not in self._agreements:
            if len(self._agreements) >= MOST_KEPT:
                self._agreements.clear()
            shapes = [StepShape(count, 0, (), count) if count else self.dummy for count in counts]
            self._agreements[key] = self.agreement(shapes)
        return self._agreements[key]

    def lanes(self, counts: Sequence[int], contexts: Sequence[int], agreement: Agreement | None) -> list[Lane]:
        """Ranks that only decode so many, at such sums of contexts, or idle: 0."""
        found = []
        for count, context_tokens in zip(counts, contexts, strict=True):
            if count:
                found.append(Lane(self._steps_of(count, agreement).curve, context_tokens, count))
            else:
                found.append(self._idle_lane(agreement))
        return found

    def _idle_lane(self, agreement: Agreement | None) -> Lane:
        lane = self._idle.get(agreement)
        if lane is None:
            seconds = self._step_time.step_s(self.dummy._replace(agreement=agreement))
            lane = self._idle[agreement] = Lane(Constant(seconds), 0, 0)
        return lane

    def leap(
        self, lanes: Sequence[Lane], agreement: Agreement | None, max_steps: int, start_s: float
    ) -> tuple[Leap, list[float]]:
        """The next steps, `max_steps` or fewer: those that the rank which is slowest now stays slowest in; and each rank's first."""
        seconds = [lane.at(0) for lane in lanes]
        slowest = seconds.index(max(seconds))
        lane = lanes[slowest]
        if lane.num_decodes:
            steps = self._steps_of(lane.num_decodes, agreement)
            leap = steps.leap(lane.context_tokens, max_steps, start_s)
        else:
            leap = Leap(max_steps, start_s, seconds[slowest], 0.0, 0.0)
        leap.num_steps = _num_slowest(lanes, slowest, leap.num_steps)
        return leap, seconds

    def _steps_of(self, num_decodes: int, agreement: Agreement | None) -> DecodeSteps:
        key = (num_decodes, agreement)
        steps = self._steps.get(key)
        if steps is None:
            if len(self._steps) >= MOST_KEPT:
                self._steps.clear()
            if agreement is None:
                curve = self._step_time.decode_curve(num_decodes)
            else:
                curve = cast("AgreedStepTime", self._step_time).agreed_curve(num_decodes, agreement)
            steps = self._steps[key] = DecodeSteps(curve, num_decodes)
        return steps


def _num_slowest(lanes: Sequence[Lane], slowest: int, num_steps: int) -> int:
    """For how many of these steps that rank takes longest: step times are nearly straight lines, of which two cross once."""
    if num_steps == 1 or _is_slowest(lanes, slowest, num_steps - 1):
        return num_steps
    low, high = 0, num_steps - 1
    while high - low > 1:
        middle = (low + high) // 2
        if _is_slowest(lanes, slowest, middle):
            low = middle
        else:
            high = middle
    return low + 1


def _is_slowest(lanes: Sequence[Lane], slowest: int, step: int) -> bool:
    seconds = lanes[slowest].at(step)
    return all([lane.at(step) <= seconds for lane in lanes])  # noqa: C419 - compiled, a list is faster
