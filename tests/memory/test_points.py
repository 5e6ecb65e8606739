"""Every logged activation, non-torch and graph figure, with the error that is known and accepted for it."""

from benchmarks.memory import Comparison, activations, graphs, non_torch

FIRST_STAGE, UNFITTED = 11.0, 36.0  # per cent


def test_activation_peaks() -> None:
    """Within 6 % of the logged peak; granite's and a pipeline's first stage, where a layer decides, within 11 %."""

    def accepted(point: Comparison) -> float:
        return FIRST_STAGE if "first of" in point.name or "granite" in point.name else 6

    points = activations()
    assert len(points) == 21
    assert [point for point in points if abs(point.error_percent) >= accepted(point)] == []


def test_non_torch_memory() -> None:
    """One figure stands for TP 2 and TP 4, which differ by 7 %, another for a stage of one GPU."""
    points = non_torch()
    assert len(points) == 5
    assert [point for point in points if abs(point.error_percent) >= 4] == []


def test_graph_memory() -> None:
    """Within 6 % where fitted, 36 % where not, and within 100 MiB where there is little to measure."""

    def is_off(point: Comparison) -> bool:
        is_small = abs(point.predicted - point.measured) < 0.1
        return not is_small and abs(point.error_percent) >= (UNFITTED if point.note else 6)

    points = graphs("taken") + graphs("estimated")
    assert len(points) == 18
    assert [point for point in points if is_off(point)] == []


def test_the_design_overestimates_graphs_beyond_use() -> None:
    """The original design's formula gives a hundred times what graphs take, at least."""
    points = graphs("design")
    assert len(points) == 11
    assert all(point.predicted > 100 * point.measured for point in points)
