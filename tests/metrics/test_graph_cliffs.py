"""CUDA-graph cliffs, told from the shapes of steps."""

from typing import Any

import pytest

from sim.metrics.graph_cliffs import GraphCliff, graph_cliffs
from sim.specs.engine import EngineConfig, ResolvedEngine
from sim.specs.hardware import load_gpu
from sim.specs.models import load_model
from sim.specs.vllm import resolve_engine
from sim.steptime.protocol import StepShape, StepTimeModel
from sim.steptime.roofline import RooflineStepTime
from tests.metrics.makers import Step, make_leaps

QWEN, H100 = load_model("Qwen3-0.6B"), load_gpu("h100-sxm")


def make_engine(**arguments: Any) -> ResolvedEngine:
    return resolve_engine(EngineConfig(**arguments), QWEN, H100)


def timed_under(engine: ResolvedEngine) -> StepTimeModel:
    return RooflineStepTime(QWEN, H100, engine)


def cliffs(engine: ResolvedEngine, *steps: Step) -> tuple[GraphCliff, ...]:
    """Those of a run of these steps, each sampled once."""
    samples = [
        StepShape(step.num_decodes, step.num_decodes, ((step.num_chunk_tokens, 0),) * bool(step.num_chunk_tokens), step.num_decodes)
        for step in steps
    ]  # fmt: skip
    return graph_cliffs(make_leaps(*steps), engine, samples, timed_under)


def test_decodes_beyond_the_largest_captured_size_are_a_cliff() -> None:
    """Nine of ten seconds ran eager, which a tiny model pays for; the sentence says what to change."""
    engine = make_engine(max_num_seqs=64, max_cudagraph_capture_size=16)
    (found,) = cliffs(engine, Step(0.0, 1.0, num_decodes=16), Step(1.0, 10.0, num_decodes=17))
    assert found.kind == "decode_beyond_largest"
    assert (found.num_steps, found.step_share, found.busy_share, found.largest_batch) == (1, 0.5, 0.9, 17)
    assert found.cost is not None
    assert found.cost > 0.2
    assert found.is_worth_saying
    assert "1 steps (90% of the busy time) decoded more than 16 requests, the largest captured size" in found.text
    assert found.text.endswith("raise max_cudagraph_capture_size to 17 or lower max_num_seqs to 16.")


def test_the_cost_is_what_graphs_of_the_exact_size_would_save() -> None:
    """Each sample is half of the busy time: of the eager one's, the share that a graph would spare."""
    engine = make_engine(max_num_seqs=64, max_cudagraph_capture_size=16)
    (found,) = cliffs(engine, Step(0.0, 1.0, num_decodes=16), Step(1.0, 10.0, num_decodes=17))
    captured = timed_under(make_engine(max_num_seqs=64, cudagraph_capture_sizes=(16, 17)))
    eager, in_graph = (timed.step_s(StepShape(17, 17, (), 17)) for timed in (timed_under(engine), captured))
    assert found.cost == pytest.approx((1 - in_graph / eager) / 2)


def test_decodes_padded_to_a_size_without_a_full_graph_are_a_cliff() -> None:
    """20 seats pad 17 requests to 24, which has no full graph as no batch of 24 decodes can be."""
    engine = make_engine(max_num_seqs=20, cudagraph_capture_sizes=(8, 16, 24))
    (found,) = cliffs(engine, Step(0.0, 1.0, num_decodes=17))
    assert found.kind == "decode_without_full_graph"
    assert "add 20 to cudagraph_capture_sizes" in found.text


def test_wide_gaps_between_captured_sizes_pad_heavily() -> None:
    """17 more tokens are beyond what vLLM's own sizes ever add; 16 are not."""
    engine = make_engine(max_num_seqs=64, cudagraph_capture_sizes=(1, 40, 64))
    (found,) = cliffs(engine, Step(0.0, 1.0, num_decodes=23), Step(1.0, 2.0, num_decodes=24))
    assert (found.kind, found.num_steps) == ("padded", 1)


def test_long_prompts_run_without_a_graph_and_that_is_said_where_it_costs() -> None:
    """A step of 600 tokens waits for its launches on a tiny model, one of 8,192 keeps the GPU busy."""
    (short,) = cliffs(make_engine(), Step(0.0, 1.0, num_decodes=0, num_chunk_tokens=600))
    (long,) = cliffs(make_engine(), Step(0.0, 1.0, num_decodes=0, num_chunk_tokens=8192))
    assert short.kind == long.kind == "prompt_beyond_largest"
    assert short.is_worth_saying
    assert not long.is_worth_saying
    assert long.text.endswith("their launches cost next to nothing.")


def test_nothing_is_said_where_graphs_are_off_or_fit() -> None:
    """Whoever asks for eager knows; default sizes cover the default batches."""
    assert cliffs(make_engine(enforce_eager=True), Step(0.0, 1.0, num_decodes=600)) == ()
    assert cliffs(make_engine(), Step(0.0, 1.0, num_decodes=300)) == ()


def test_given_step_times_have_counts_and_no_cost() -> None:
    """A model of step times from a file knows no graphs."""
    engine = make_engine(max_num_seqs=64, max_cudagraph_capture_size=16)
    (found,) = graph_cliffs(make_leaps(Step(0.0, 1.0, num_decodes=17)), engine, [], None)
    assert found.cost is None
    assert "without a graph; raise" in found.text
