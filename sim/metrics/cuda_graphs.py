"""Which steps replayed a CUDA graph, told from their shapes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.serving.records import Ints, LeapRecords
from sim.steptime.graphs import GraphDispatch

Kinds = NDArray[Any]


def step_graphs(num_decodes: Ints, num_chunk_tokens: Ints, dispatch: GraphDispatch) -> Kinds:
    """`full`, `piecewise` or `none` for each step of those shapes, by vLLM's dispatch rule."""
    num_tokens = num_decodes + num_chunk_tokens
    shapes, shape_of_step = np.unique(num_tokens * 2 + (num_chunk_tokens == 0), return_inverse=True)
    kinds = [dispatch.dispatch(int(shape) // 2, is_uniform_decode=bool(shape % 2)).graph for shape in shapes]
    return np.array(kinds, dtype=object)[shape_of_step]


def cudagraph_step_fraction(leaps: LeapRecords, dispatch: GraphDispatch) -> float | None:
    """Share of steps that replayed any graph; None without steps."""
    if not leaps.num_ran_steps:
        return None
    in_graph = step_graphs(leaps.num_decodes, leaps.num_chunk_tokens, dispatch) != "none"
    return int(leaps.num_steps[leaps.ran & in_graph].sum()) / leaps.num_ran_steps
