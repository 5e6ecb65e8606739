"""CUDA-graph cliffs that a run met: batches beyond what was captured, and what that cost."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sim.engine.leap_records import LeapRecords
from sim.engine.records import Floats
from sim.metrics.bottlenecks import WORTH_SAYING, steps_s
from sim.metrics.cuda_graphs import counted_on, step_shapes, steps_by_shape
from sim.specs.engine import ResolvedEngine
from sim.steptime.graphs import GraphDispatch
from sim.steptime.protocol import StepShape, StepTimeModel

TimedUnder = Callable[[ResolvedEngine], StepTimeModel]

WIDEST_SPACING = 16  # of the sizes that vLLM captures by itself: padding up to there is as designed
HEAVY_PADDING = 0.25
NOTHING = 0.01


class GraphCliff(NamedTuple):
    """Steps of one kind that a larger or another captured size would have served better.

    Shares are of all steps and of the busy time; `cost` is the share of the busy time that graphs of the exact size would
    save, None where step times are given.
    """

    kind: str
    num_steps: int
    step_share: float
    busy_share: float
    largest_batch: int
    cost: float | None
    text: str

    @property
    def is_worth_saying(self) -> bool:
        """Always for decodes without a graph; for steps with prompts or padding only if that costs time."""
        shares = self.cost or 0.0, self.busy_share if self.kind.startswith("decode") else 0.0
        return max(shares) >= WORTH_SAYING


class _Met(NamedTuple):
    """How often and how long each shape ran, by number of tokens and whether all of them are decodes."""

    kind: str
    num_steps: int
    busy_s: float
    largest_batch: int


def graph_cliffs(
    leaps: LeapRecords, engine: ResolvedEngine, samples: list[StepShape], timed_under: TimedUnder | None
) -> tuple[GraphCliff, ...]:
    """The cliffs of a run, derived from the shapes of its steps; none if no graph was to be captured.

    `samples` stand for equal shares of the busy time, and `timed_under` times steps under other engine arguments.
    """
    dispatch = GraphDispatch.of(engine)
    steps = StepsByShape(steps_by_shape(leaps, dispatch), busy_s_by_shape(leaps, dispatch))
    return cliffs_of(steps, leaps.num_ran_steps, leaps.busy_s, engine, samples, timed_under)


class StepsByShape(NamedTuple):
    """How many steps had each shape, and how long they ran."""

    num_steps: Floats
    busy_s: Floats


def cliffs_of(
    steps: StepsByShape,
    num_ran_steps: int,
    busy_s: float,
    engine: ResolvedEngine,
    samples: list[StepShape],
    timed_under: TimedUnder | None,
) -> tuple[GraphCliff, ...]:
    """The same of all steps by their shape."""
    if engine.cudagraph_mode == "NONE" or not num_ran_steps:
        return ()
    met = _met(steps, engine)
    costs = _costs(met, engine, samples, timed_under) if timed_under and met else {}
    return tuple(
        GraphCliff(
            one.kind,
            one.num_steps,
            one.num_steps / num_ran_steps,
            one.busy_s / busy_s,
            one.largest_batch,
            costs.get(one.kind),
            _text(one, one.busy_s / busy_s, costs.get(one.kind), engine),
        )
        for one in met
    )


def _met(steps: StepsByShape, engine: ResolvedEngine) -> list[_Met]:
    dispatch, (num_steps, busy_s) = GraphDispatch.of(engine), steps
    kinds: dict[str, list[int]] = {}
    for shape in np.flatnonzero(num_steps).tolist():
        if kind := _kind(shape // 2, engine, dispatch, is_uniform_decode=bool(shape % 2)):
            kinds.setdefault(kind, []).append(shape)
    return [
        _Met(kind, int(num_steps[of].sum()), float(busy_s[of].sum()), max(of) // 2) for kind, of in sorted(kinds.items())
    ]  # fmt: skip


def busy_s_by_shape(leaps: LeapRecords, dispatch: GraphDispatch) -> Floats:
    """How long the steps of each shape ran."""
    busy_s = np.zeros(0)
    for part in leaps.parts():
        busy_s = counted_on(busy_s, step_shapes(part, dispatch), part.durations_s)
    return busy_s


def _kind(num_tokens: int, engine: ResolvedEngine, dispatch: GraphDispatch, *, is_uniform_decode: bool) -> str | None:
    """The problem with the graph of such a step, or None."""
    graph, num_padded = dispatch.dispatch(num_tokens, is_uniform_decode=is_uniform_decode)
    what = "decode" if is_uniform_decode else "prompt"
    if num_tokens > dispatch.capture_sizes[-1]:
        return f"{what}_beyond_largest"
    if is_uniform_decode and graph != "full" and engine.cudagraph_mode.startswith("FULL"):
        return "decode_without_full_graph"
    num_added = num_padded - num_tokens
    return "padded" if num_added > WIDEST_SPACING and num_added > HEAVY_PADDING * num_tokens else None


def _costs(
    met: list[_Met], engine: ResolvedEngine, samples: list[StepShape], timed_under: TimedUnder
) -> Mapping[str, float]:
    """Of the busy time, what steps of each kind would save if their exact size were captured as a full graph."""
    largest = max(one.largest_batch for one in met)
    captured = replace(engine, cudagraph_mode="FULL", cudagraph_capture_sizes=tuple(range(1, largest + 1)))
    as_is, exact, dispatch = timed_under(engine), timed_under(captured), GraphDispatch.of(engine)
    saved = 1 - steps_s(exact, samples) / steps_s(as_is, samples)
    kinds = [
        _kind(shape.num_tokens, engine, dispatch, is_uniform_decode=dispatch.is_uniform(shape)) for shape in samples
    ]
    return {
        one.kind: max(0.0, float(np.sum(saved, where=[kind == one.kind for kind in kinds])) / len(samples))
        for one in met
    }


def _text(met: _Met, busy_share: float, cost: float | None, engine: ResolvedEngine) -> str:
    top, each = engine.cudagraph_capture_sizes[-1], engine.uniform_query_len
    seqs, of = engine.max_num_seqs * each, "requests" if each == 1 else "tokens"
    what, remedy = {
        "decode_beyond_largest": (
            f"decoded more than {top:,} {of}, the largest captured size, and ran without a graph",
            f"raise max_cudagraph_capture_size to {met.largest_batch:,} or lower max_num_seqs to {top // each:,}",
        ),
        "prompt_beyond_largest": (
            f"had prompts and more than {top:,} tokens, the largest captured size, and ran without a graph",
            f"raise max_cudagraph_capture_size towards {met.largest_batch:,}",
        ),
        "decode_without_full_graph": (
            f"decoded up to {met.largest_batch:,} {of} without a full graph, for none is captured at the size they are padded to",
            f"add {seqs:,} to cudagraph_capture_sizes",
        ),
        "padded": (
            f"were padded by more than {WIDEST_SPACING} tokens and a quarter",
            "close the gaps between cudagraph_capture_sizes",
        ),
    }[met.kind]
    head = f"{met.num_steps:,} steps ({_percent(busy_share)} of the busy time) {what}"
    if cost is not None and cost < NOTHING:
        return f"{head}, but their launches cost next to nothing."
    return f"{head}{'' if cost is None else f', which cost {_percent(cost)} of it'}; {remedy}."


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= NOTHING else "under 1%"
