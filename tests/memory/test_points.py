"""Every logged activation, non-torch and graph figure, with the error that is known and accepted for it."""

import pytest

from benchmarks.memory import Comparison, activations, graphs, non_torch

FIRST_STAGE, UNFITTED = 11.0, 36.0  # per cent


@pytest.mark.parametrize("point", activations(), ids=lambda point: point.name)
def test_activation_peaks(point: Comparison) -> None:
    """Within 6 % of the logged peak; granite's and a pipeline's first stage, where a layer decides, within 11 %."""
    layer_decides = "first of" in point.name or "granite" in point.name
    assert abs(point.error_percent) < (FIRST_STAGE if layer_decides else 6)


@pytest.mark.parametrize("point", non_torch(), ids=lambda point: point.name)
def test_non_torch_memory(point: Comparison) -> None:
    """One figure stands for TP 2 and TP 4, which differ by 7 %, another for a stage of one GPU."""
    assert abs(point.error_percent) < 4


@pytest.mark.parametrize("point", graphs("taken") + graphs("estimated"), ids=lambda point: point.name)
def test_graph_memory(point: Comparison) -> None:
    """Within 6 % where fitted, 36 % where not, and within 100 MiB where there is little to measure."""
    small = abs(point.predicted - point.measured) < 0.1
    assert small or abs(point.error_percent) < (UNFITTED if point.note else 6)


@pytest.mark.parametrize("point", graphs("design"), ids=lambda point: point.name)
def test_the_design_overestimates_graphs_beyond_use(point: Comparison) -> None:
    """The original design's formula gives a hundred times what graphs take, at least."""
    assert point.predicted > 100 * point.measured
