"""How many graphs are captured, and what they take by each of the formulas."""

from dataclasses import replace

import pytest

from sim.memory.cuda_graphs import CapturedGraphs, GraphLayers, captured_graphs, estimated_bytes, taken_bytes
from sim.memory.design import design_graph_bytes
from sim.memory.parameters import memory_parameters
from sim.memory.plan import plan_memory
from sim.specs.autotuning import AutotuningParameters
from sim.specs.engine import CudagraphMode, EngineConfig
from sim.specs.hardware import load_gpu
from sim.units import GIB
from tests.memory.shapes import Shape, make_engine, make_model


@pytest.mark.parametrize(
    ("mode", "piecewise", "full"),
    [
        ("NONE", 0, 0),
        ("PIECEWISE", 51, 0),
        ("FULL", 0, 51),
        ("FULL_DECODE_ONLY", 0, 35),
        ("FULL_AND_PIECEWISE", 51, 35),
    ],
)
def test_graphs_by_mode(mode: CudagraphMode, piecewise: int, full: int) -> None:
    """256 sequences capture 51 piecewise sizes up to 512 and 35 whole decode steps up to 256."""
    engine = make_engine(make_model(Shape()), EngineConfig(max_num_seqs=256), vllm_version="0.19.0")
    graphs = captured_graphs(replace(engine, cudagraph_mode=mode))
    assert (len(graphs.piecewise), len(graphs.full)) == (piecewise, full)
    assert graphs.num_graphs == piecewise + full


def test_what_graphs_take_follows_their_sizes() -> None:
    """Twice the tokens a graph cost more, twice the graphs twice as much; experts and layers add, nothing costs nothing."""
    parameters, layers = memory_parameters().graphs_taken, GraphLayers(32, 0)
    small, large = CapturedGraphs((1, 2, 4), ()), CapturedGraphs((2, 4, 8), ())
    assert taken_bytes(CapturedGraphs((), ()), layers, parameters) == 0
    assert taken_bytes(small, layers, parameters) < taken_bytes(large, layers, parameters)
    assert taken_bytes(small, layers, parameters) < taken_bytes(small, GraphLayers(32, 32), parameters)
    both = CapturedGraphs(small.piecewise, small.piecewise)
    assert taken_bytes(both, layers, parameters) == pytest.approx(2 * taken_bytes(small, layers, parameters), abs=2)


def test_the_estimate_follows_the_number_alone() -> None:
    """vLLM extrapolates from the two largest graphs, so small ones count as much."""
    parameters, layers = memory_parameters().graphs_estimated, GraphLayers(32, 0)
    small, large = CapturedGraphs((1, 2, 4), ()), CapturedGraphs((2, 4, 512), ())
    assert estimated_bytes(small, layers, parameters) == estimated_bytes(large, layers, parameters) > 0
    assert estimated_bytes(small, layers, parameters) < estimated_bytes(small, GraphLayers(32, 1), parameters)


def test_the_design_by_hand() -> None:
    """10 GiB of weights and sizes 1, 2, 4: a GiB each, and 2 % more for each token, is 3.14 GiB; 1.8 times that in FULL."""
    parameters = AutotuningParameters()
    assert design_graph_bytes(10 * GIB, (1, 2, 4), parameters) == pytest.approx(3.14 * GIB, abs=2)
    full = replace(parameters, compilation_level="FULL")
    assert design_graph_bytes(10 * GIB, (1, 2, 4), full) == pytest.approx(1.8 * 3.14 * GIB, abs=2)


def test_the_design_parameters_are_the_documents() -> None:
    """What the memory plan reads of them has the original document's names and values."""
    parameters = AutotuningParameters()
    assert parameters.graph_memory_overhead_base_ratio == 0.1
    assert parameters.graph_memory_batch_scaling_factor == 0.02
    assert parameters.compilation_memory_multiplier_full == 1.8
    assert parameters.compilation_memory_multiplier_piecewise == 1.0
    assert parameters.compilation_level == "PIECEWISE"


def test_the_design_is_subtracted_from_the_cache_in_every_version() -> None:
    """Selected, it replaces both what is set aside and what is taken; without graphs it asks for nothing."""
    model, gpu = make_model(Shape()), load_gpu("h100-sxm")
    engine = make_engine(model, EngineConfig(cudagraph_capture_sizes=(1, 2, 4)), vllm_version="0.15.1")
    design, measured = plan_memory(model, gpu, engine, graph_memory="design"), plan_memory(model, gpu, engine)
    expected = design_graph_bytes(design.weights_bytes, (1, 2, 4), AutotuningParameters())
    assert design.cuda_graph_bytes == design.cuda_graph_estimate_bytes == expected
    assert measured.available_kv_cache_bytes - design.available_kv_cache_bytes == expected
    eager = make_engine(model, EngineConfig(enforce_eager=True))
    assert plan_memory(model, gpu, eager, graph_memory="design").cuda_graph_bytes == 0
