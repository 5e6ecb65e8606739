"""CUDA-graph dispatch: which graph and which padded size, by mode, size and uniformity of the batch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.specs.engine import CudagraphMode
from sim.steptime.graphs import Dispatch, GraphDispatch
from tests.steptime.makers import make_engine

SIZES = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
MODES: tuple[CudagraphMode, ...] = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")


def dispatch(
    num_tokens: int,
    *,
    uniform: bool = True,
    mode: CudagraphMode = "FULL_AND_PIECEWISE",
    sizes: tuple[int, ...] = SIZES,
    max_num_seqs: int = 256,
) -> Dispatch:
    return GraphDispatch(mode, sizes, max_num_seqs).dispatch(num_tokens, is_uniform_decode=uniform)


def test_the_default_captures_51_sizes_35_of_them_full() -> None:
    """256 sequences and 8,192 tokens since 0.12: 51 piecewise graphs, 35 full decode graphs."""
    engine = make_engine()
    graphs = GraphDispatch(engine.cudagraph_mode, engine.cudagraph_capture_sizes, engine.max_num_seqs)
    assert engine.cudagraph_capture_sizes == SIZES
    assert (len(graphs.capture_sizes), len(graphs.full_sizes)) == (51, 35)


@pytest.mark.parametrize(
    ("num_tokens", "uniform", "expected"),
    [
        (37, True, ("full", 40)),
        (256, True, ("full", 256)),
        (257, True, ("piecewise", 272)),
        (513, True, ("none", 513)),
        (300, False, ("piecewise", 304)),
        (600, False, ("none", 600)),
        (1, False, ("piecewise", 1)),
    ],
)
def test_full_and_piecewise(num_tokens: int, uniform: bool, expected: tuple[str, int]) -> None:
    """Decodes pad to a full graph up to max_num_seqs, other batches to a piecewise one, none above the largest size."""
    assert dispatch(num_tokens, uniform=uniform) == expected


def test_version_0_11_pads_in_steps_of_8_everywhere() -> None:
    """Before 0.12, 257 decodes pad to 264."""
    sizes = (1, 2, 4, *range(8, 513, 8))
    assert len(sizes) == 67
    assert dispatch(257, sizes=sizes).num_tokens == 264


@pytest.mark.parametrize(
    ("mode", "uniform", "expected"),
    [
        ("NONE", True, ("none", 37)),
        ("PIECEWISE", True, ("piecewise", 40)),
        ("PIECEWISE", False, ("piecewise", 40)),
        ("FULL", True, ("full", 40)),
        ("FULL", False, ("full", 40)),
        ("FULL_DECODE_ONLY", True, ("full", 40)),
        ("FULL_DECODE_ONLY", False, ("none", 37)),
    ],
)
def test_what_each_mode_does_with_37_tokens(mode: CudagraphMode, uniform: bool, expected: tuple[str, int]) -> None:
    """FULL holds any batch, FULL_DECODE_ONLY runs mixed ones eagerly, PIECEWISE has no full graphs, NONE no graphs."""
    assert dispatch(37, uniform=uniform, mode=mode) == expected


def test_decodes_beyond_the_last_full_size_take_a_piecewise_graph() -> None:
    """With 100 sequences and no graph of 100, 98 decodes pad past max_num_seqs and lose their full graph."""
    assert dispatch(98, max_num_seqs=100) == ("piecewise", 104)
    assert dispatch(98, max_num_seqs=100, mode="FULL_DECODE_ONLY") == ("none", 98)
    assert dispatch(96, max_num_seqs=100) == ("full", 96)


def test_eager_has_no_sizes() -> None:
    """enforce_eager resolves to mode NONE and no sizes: every batch runs at its exact size."""
    engine = make_engine(enforce_eager=True)
    graphs = GraphDispatch(engine.cudagraph_mode, engine.cudagraph_capture_sizes, engine.max_num_seqs)
    assert graphs.dispatch(37, is_uniform_decode=True) == ("none", 37)


@given(
    mode=st.sampled_from(MODES),
    sizes=st.sets(st.integers(1, 600), max_size=20),
    num_tokens=st.integers(1, 700),
    max_num_seqs=st.integers(1, 300),
    uniform=st.booleans(),
)
def test_a_graph_is_the_smallest_captured_size_that_holds_the_batch(
    mode: CudagraphMode, sizes: set[int], num_tokens: int, max_num_seqs: int, uniform: bool
) -> None:
    """Whatever is captured: padding only to the next captured size, and exact size without a graph."""
    graph, padded = dispatch(
        num_tokens, uniform=uniform, mode=mode, sizes=tuple(sorted(sizes)), max_num_seqs=max_num_seqs
    )
    if graph == "none":
        assert padded == num_tokens
    else:
        assert padded == min(size for size in sizes if size >= num_tokens)
    if graph == "full" and mode != "FULL":
        assert uniform
        assert padded <= max_num_seqs
