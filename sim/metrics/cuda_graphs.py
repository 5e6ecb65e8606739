"""Which steps replayed a CUDA graph, derived from their shapes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.engine.leap_columns import Leaps
from sim.engine.leap_records import LeapRecords
from sim.engine.records import Floats, Ints
from sim.engine.step_records import StepRecords
from sim.steptime.graphs import GraphDispatch

Kinds = NDArray[Any]


def step_graphs(steps: StepRecords, dispatch: GraphDispatch) -> Kinds:
    """`full`, `piecewise` or `none` for each step, by vLLM's dispatch rule."""
    shapes = step_shapes(steps, dispatch)
    counts = np.bincount(shapes)
    kinds = np.empty(len(counts), dtype=object)
    for shape in np.flatnonzero(counts).tolist():
        kinds[shape] = _kind(shape, dispatch)
    return kinds[shapes]


def cudagraph_step_fraction(leaps: LeapRecords, dispatch: GraphDispatch) -> float | None:
    """Share of steps that replayed any graph; None without steps."""
    return share_in_graphs(steps_by_shape(leaps, dispatch), leaps.num_ran_steps, dispatch)


def share_in_graphs(num_steps: Floats, num_ran_steps: int, dispatch: GraphDispatch) -> float | None:
    """The same of steps by their shape."""
    if not num_ran_steps:
        return None
    in_graph = [shape for shape in np.flatnonzero(num_steps).tolist() if _kind(shape, dispatch) != "none"]
    return int(num_steps[in_graph].sum()) / num_ran_steps


def steps_by_shape(leaps: LeapRecords, dispatch: GraphDispatch) -> Floats:
    """How many steps had each shape."""
    counts = np.zeros(0)
    for part in leaps.parts():
        shapes = step_shapes(part, dispatch)
        counts = counted_on(counts, shapes, part.num_steps * part.ran)
    return counts


def counted_on(totals: Floats, places: Ints, weights: Floats | Ints) -> Floats:
    """The totals by place with these weights added one after the other: sums as if all were counted at once."""
    places = np.concatenate((np.arange(len(totals)), places))
    return np.asarray(np.bincount(places, np.concatenate((totals, weights))), dtype=np.float64)


def step_shapes(steps: StepRecords | Leaps, dispatch: GraphDispatch) -> Ints:
    """A number for each step: twice its tokens, one more where all of them are decodes with all drafts that they can have."""
    is_uniform = steps.num_chunk_tokens == 0
    if dispatch.query_len > 1:
        is_uniform &= steps.num_drafts == steps.num_decodes * (dispatch.query_len - 1)
    return np.asarray(steps.num_tokens * 2 + is_uniform)


def _kind(shape: int, dispatch: GraphDispatch) -> str:
    return dispatch.dispatch(shape // 2, is_uniform_decode=bool(shape % 2)).graph
