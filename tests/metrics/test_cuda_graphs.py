import pytest

from sim.metrics.cuda_graphs import cudagraph_step_fraction, step_graphs
from tests.metrics.makers import DISPATCH, Step, make_leaps


def test_each_step_gets_the_graph_that_vllm_dispatches() -> None:
    """Sizes to 8, 4 sequences: 3 decodes replay a full graph, a chunk of 5 a piecewise one, 8 decodes too.

    9 tokens are above the largest; 3 tokens of which 2 are a chunk are no uniform batch.
    """
    leaps = make_leaps(
        Step(0, 1, num_decodes=3),
        Step(1, 2, num_decodes=0, num_chunk_tokens=5),
        Step(2, 3, num_decodes=8),
        Step(3, 4, num_decodes=4, num_chunk_tokens=5),
        Step(4, 5, num_decodes=1, num_chunk_tokens=2),
    )
    kinds = step_graphs(leaps.steps(), DISPATCH)
    assert kinds.tolist() == ["full", "piecewise", "piecewise", "none", "piecewise"]
    assert cudagraph_step_fraction(leaps, DISPATCH) == pytest.approx(0.8)


def test_no_steps_have_no_fraction() -> None:
    """None, not a division by zero."""
    assert cudagraph_step_fraction(make_leaps(), DISPATCH) is None
