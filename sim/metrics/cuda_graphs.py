"""Which steps replayed a CUDA graph, told from their shapes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.serving.records import StepRecords
from sim.steptime.graphs import GraphDispatch

Kinds = NDArray[Any]


def step_graphs(steps: StepRecords, dispatch: GraphDispatch) -> Kinds:
    """`full`, `piecewise` or `none` for each step, by vLLM's dispatch rule."""
    num_tokens = steps.num_decodes + steps.num_chunk_tokens
    shapes, shape_of_step = np.unique(num_tokens * 2 + (steps.num_chunk_tokens == 0), return_inverse=True)
    kinds = [dispatch.dispatch(int(shape) // 2, is_uniform_decode=bool(shape % 2)).graph for shape in shapes]
    return np.array(kinds, dtype=object)[shape_of_step]


def cudagraph_step_fraction(kinds: Kinds) -> float | None:
    """Share of steps that replayed any graph; None without steps."""
    return float((kinds != "none").mean()) if len(kinds) else None
