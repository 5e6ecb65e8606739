"""Steps of data-parallel ranks in lock step: what the ranks agree on, how long each takes, and for how many steps the slowest stays it.

Mirrors vLLM's v1/worker/dp_utils.py (0.33), which is taken for all versions: the ranks run the smallest CUDA graph that any of
them could, all padded to the most tokens that any of them is padded to; where one runs without a graph, all do, and nobody pads.

With dual-batch overlap a step is split in two if every rank has tokens enough, and for its second half too. Of the sizes from the threshold
on the full graphs of decodes are of split steps alone: others of these sizes run without. Deliberate difference: vLLM 0.33 does
not split a step in which a request reads blocks that another one writes in the same step.
"""

from typing import Final, NamedTuple, cast

from sim.engine.leaps import DecodeSteps, Leap
from sim.engine.unlimited import UNLIMITED
from sim.steptime.graphs import GraphDispatch
from sim.steptime.protocol import (
    AgreedStepTime,
    Agreement,
    DecodeCurve,
    GraphKind,
    StepShape,
    StepTimeModel,
    num_tokens_of,
    shape_of,
)
from sim.steptime.roofline import RooflineStepTime

MOST_KEPT: Final = 1 << 14
"""Of what was worked out: without graphs nearly every step has an agreement of its own."""
LEAST_FIRST: Final[tuple[GraphKind, ...]] = ("none", "piecewise", "full")
FULL: Final = 2
CLEARLY_LESS: Final = 1.0 - 1e-6
"""Parabolas, which are off by 3e-10 or little more, are sure of differences beyond this."""


class DualBatches(NamedTuple):
    """From so many tokens of a rank on a step may be split in two: where all that it does is decode, and where not."""

    decode_token_threshold: int = 32
    prefill_token_threshold: int = 512


def dummy_batch(num_drafts: int = 0) -> StepShape:
    """What a rank computes that has nothing to do: one decode, of as many tokens as a decode can have."""
    return StepShape(1, 1 + num_drafts, (), 1, num_drafts)


class Constant(NamedTuple):
    """A DecodeCurve of steps that take the same time."""

    seconds: float

    def at(self, context_tokens: float) -> float:  # noqa: ARG002 - the interface
        return self.seconds


class RankDecodes:
    """A rank's next passes that only decode: so many requests, or 0 of one that idles; the sum of their contexts after the first, and how long that takes."""

    __slots__ = ("context_tokens", "num_decodes", "seconds")

    def __init__(self) -> None:
        self.num_decodes = self.context_tokens = 0
        self.seconds = 0.0


class RanksDecoding:
    """Ranks that only decode, so many requests each, or idle: 0. What they agree on, and how long each takes by the sum of its contexts.

    Contexts grow by a rank's decodes a step; those of one that idles stay 0. Of `num_computed` tokens a step, padding included, requests
    ask for `num_asked`; the ranks in `idle` take dummies.
    """

    __slots__ = ("agreement", "counts", "idle", "num_asked", "num_computed", "steps")

    def __init__(self, counts: list[int], agreement: Agreement | None, steps: list[DecodeSteps]) -> None:
        self.counts = counts
        self.agreement = agreement
        self.steps = steps
        self.num_asked, self.num_computed = num_tokens_in_step(counts, agreement)
        self.idle = [rank for rank, count in enumerate(counts) if count == 0]

    def leap(self, ranks: list[RankDecodes], max_steps: int, start_s: float) -> Leap:
        """The next steps, `max_steps` or fewer: those that the rank which is slowest now stays slowest in; each is told how long its first takes."""
        slowest, slowest_s = 0, -1.0
        for rank, steps in enumerate(self.steps):
            own = ranks[rank]
            own.seconds = steps.at(own.context_tokens)
            if own.seconds > slowest_s:
                slowest, slowest_s = rank, own.seconds
        if ranks[slowest].num_decodes:
            leap = self.steps[slowest].leap(ranks[slowest].context_tokens, max_steps, start_s)
        else:
            leap = Leap(max_steps, start_s, slowest_s, 0.0, 0.0)
        leap.num_steps = self._num_slowest(slowest, slowest_s, ranks, leap.num_steps)
        return leap

    def _num_slowest(self, slowest: int, first_s: float, ranks: list[RankDecodes], num_steps: int) -> int:
        """For how many of these steps that rank takes longest: step times are nearly straight lines, which do not fall, and of which two cross once."""
        if num_steps == 1 or self._is_slowest(slowest, first_s, ranks, num_steps - 1):
            return num_steps
        low, high = 0, num_steps - 1
        while high - low > 1:
            middle = (low + high) // 2
            if self._is_slowest(slowest, first_s, ranks, middle):
                low = middle
            else:
                high = middle
        return low + 1

    def _is_slowest(self, slowest: int, least_s: float, ranks: list[RankDecodes], step: int) -> bool:
        """Whether no other rank takes longer for that step, counted from 0, for which this one takes `least_s` or more."""
        for rank, steps in enumerate(self.steps):
            if rank != slowest:
                tokens = _tokens_in(ranks[rank], step)
                if steps.seconds(tokens) < least_s * CLEARLY_LESS:
                    continue  # most often: a parabola costs a sixth of the curve, whose powers take long
                rank_s = steps.at(tokens)
                if rank_s > least_s:
                    least_s = self.steps[slowest].at(_tokens_in(ranks[slowest], step))
                    if rank_s > least_s:
                        return False
        return True


def _tokens_in(rank: RankDecodes, step: int) -> float:
    """The sum of a rank's contexts in that one of the next steps, counted from 0."""
    return rank.context_tokens + step * rank.num_decodes


def num_tokens_in_step(counts: list[int], agreement: Agreement | None) -> tuple[int, int]:
    """Tokens that requests ask for in a step of so many of each rank, 0 for a dummy; and those that are computed, padding included."""
    least = max(1, agreement.num_tokens) if agreement is not None else 1
    num_asked = num_computed = 0
    for num_tokens in counts:
        num_asked += num_tokens
        num_computed += max(num_tokens, least)
    return num_asked, num_computed


class Decodings:
    """RanksDecoding by how many decode on each rank: on the first `by_count`, and so on; `found` behind the last."""

    __slots__ = ("by_count", "found")

    def __init__(self) -> None:
        self.by_count: dict[int, Decodings] = {}
        self.found: RanksDecoding | None = None


class RankSteps:
    """Step times of ranks together. Without a `dispatch` nobody pads, and step times know of no other rank."""

    def __init__(
        self, step_time: StepTimeModel, dispatch: GraphDispatch | None, dummy: StepShape, dbo: DualBatches | None = None
    ) -> None:
        self.dummy = dummy
        self._step_time = step_time
        self._dispatch = dispatch
        self._dbo = dbo
        self._graphs: dict[int, tuple[int, int]] = {}
        self._agreements: dict[int, Agreement] = {}
        self._decodings = Decodings()
        self._num_decodings = 0
        self._steps: dict[tuple[int, Agreement | None], DecodeSteps] = {}

    def agreement(self, shapes: list[StepShape]) -> Agreement | None:
        """That of ranks that compute these, dummy batches included."""
        dispatch = self._dispatch
        if dispatch is None:
            return None
        num_tokens, num_padded, least = 0, 0, len(LEAST_FIRST) - 1
        fewest, all_split = UNLIMITED, True
        for shape in shapes:
            own_tokens, is_uniform = num_tokens_of(shape), dispatch.is_uniform(shape)
            own_least, padded = self._dispatched(dispatch, own_tokens, is_uniform)
            num_tokens += own_tokens
            num_padded = max(num_padded, padded)
            least = min(least, own_least)
            if self._dbo is not None:
                fewest = min(fewest, own_tokens)
                all_split = all_split and own_tokens >= self._dbo[0 if is_uniform else 1]
        if self._dbo is not None and all_split and fewest > num_padded // 2:
            return Agreement("full" if least == FULL else "none", num_padded, num_padded * len(shapes), 2)
        if least == 0:
            return self._agreed(0, num_tokens, len(shapes))
        if least == FULL and self._captures_split(dispatch, num_padded):
            return Agreement("none", num_padded, num_padded * len(shapes))
        return self._agreed(least, num_padded, len(shapes))

    def _agreed(self, least: int, num_tokens: int, num_ranks: int) -> Agreement:
        """Without a graph on so many tokens of all ranks, with one on so many of each: an object each, as compiled code is slow to make named tuples."""
        key = len(LEAST_FIRST) * num_tokens + least
        found = self._agreements.get(key)
        if found is None:
            each, of_all = (num_tokens, num_tokens * num_ranks) if least else (0, num_tokens)
            found = self._agreements[key] = Agreement(LEAST_FIRST[least], each, of_all)
        return found

    def _captures_split(self, dispatch: GraphDispatch, num_tokens: int) -> bool:
        """Whether the only full graph of that size is of two micro-batches."""
        return self._dbo is not None and dispatch.mode != "FULL" and num_tokens >= self._dbo.decode_token_threshold

    def _dispatched(self, dispatch: GraphDispatch, num_tokens: int, is_uniform: bool) -> tuple[int, int]:
        """A rank's own graph, as a place in LEAST_FIRST, and the tokens that it is padded to."""
        key = 2 * num_tokens + is_uniform
        found = self._graphs.get(key)
        if found is None:
            graph, padded = dispatch.dispatch(num_tokens, is_uniform_decode=is_uniform)
            found = self._graphs[key] = (LEAST_FIRST.index(graph), padded)
        return found

    def seconds(self, shapes: list[StepShape], agreement: Agreement | None) -> list[float]:
        """How long each rank takes by itself."""
        if agreement is None:
            return [self._step_time.step_s(shape) for shape in shapes]
        times = self._step_time
        if isinstance(times, RooflineStepTime):
            # compiled code calls a class's methods at once, and a protocol's by their names
            return [times.agreed_s(shape, agreement) for shape in shapes]
        agreed = cast("AgreedStepTime", times)
        return [agreed.agreed_s(shape, agreement) for shape in shapes]

    def decoding(self, ranks: list[RankDecodes]) -> RanksDecoding:
        """Ranks that only decode so many, or idle."""
        place = self._decodings
        for rank in ranks:
            following = place.by_count.get(rank.num_decodes)
            if following is None:
                return self._new_decoding([rank.num_decodes for rank in ranks])
            place = following
        assert place.found is not None, "all ranks have a place, or none"
        return place.found

    def _new_decoding(self, counts: list[int]) -> RanksDecoding:
        if self._num_decodings == MOST_KEPT:
            self._decodings, self._num_decodings = Decodings(), 0
        place = self._decodings
        for count in counts:
            place = place.by_count.setdefault(count, Decodings())
        place.found = found = self._decoding_of(counts)
        self._num_decodings += 1
        return found

    def _decoding_of(self, counts: list[int]) -> RanksDecoding:
        shapes = [shape_of(count, 0, (), count) if count else self.dummy for count in counts]
        agreement = self.agreement(shapes)
        return RanksDecoding(counts, agreement, [self._steps_of(count, agreement) for count in counts])

    def _steps_of(self, num_decodes: int, agreement: Agreement | None) -> DecodeSteps:
        """Those of a rank that decodes so many, or idles."""
        key = (num_decodes, agreement)
        steps = self._steps.get(key)
        if steps is None:
            if len(self._steps) >= MOST_KEPT:
                self._steps.clear()
            steps = self._steps[key] = DecodeSteps(self._curve(num_decodes, agreement), num_decodes)
        return steps

    def _curve(self, num_decodes: int, agreement: Agreement | None) -> DecodeCurve:
        if num_decodes == 0:
            return Constant(self.seconds([self.dummy], agreement)[0])
        if agreement is None:
            return self._step_time.decode_curve(num_decodes)
        return cast("AgreedStepTime", self._step_time).agreed_curve(num_decodes, agreement)
