"""How many graphs are captured, and what they take."""

from dataclasses import replace

import pytest

from sim.memory.cuda_graphs import GraphCount, graph_bytes, graph_count
from sim.memory.parameters import memory_parameters
from sim.specs.engine import CudagraphMode, EngineConfig
from tests.memory.shapes import Shape, make_engine, make_model


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("NONE", (0, 0)),
        ("PIECEWISE", (51, 0)),
        ("FULL", (0, 51)),
        ("FULL_DECODE_ONLY", (0, 35)),
        ("FULL_AND_PIECEWISE", (51, 35)),
    ],
)
def test_graphs_by_mode(mode: CudagraphMode, expected: tuple[int, int]) -> None:
    """256 sequences capture 51 piecewise sizes up to 512 and 35 whole decode steps up to 256."""
    engine = make_engine(make_model(Shape()), EngineConfig(max_num_seqs=256), vllm_version="0.19.0")
    assert graph_count(replace(engine, cudagraph_mode=mode)) == GraphCount(*expected)


def test_graphs_take_more_with_more_layers_and_with_experts() -> None:
    """Memory grows with graphs, layers and routed experts, and none is taken without graphs."""
    parameters = memory_parameters().graphs_taken
    small, deep = make_model(Shape()), make_model(Shape(layers=16))
    experts = make_model(Shape(num_experts=8, experts_per_token=2))
    assert graph_bytes(small, 0, parameters) == 0
    assert graph_bytes(small, 86, parameters) < graph_bytes(deep, 86, parameters)
    assert graph_bytes(small, 86, parameters) < graph_bytes(experts, 86, parameters)
    assert graph_bytes(small, 102, parameters) == pytest.approx(2 * graph_bytes(small, 51, parameters), abs=2)
