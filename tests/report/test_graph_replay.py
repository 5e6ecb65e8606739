"""Which steps replay a graph, in words, and where the cliff is."""

from typing import Any

import pytest

from sim.report.graph_replay import Replay, replay_lines, replays
from sim.specs.engine import EngineConfig, ResolvedEngine
from tests.memory.shapes import Shape, make_engine, make_model


def engine(version: str = "0.19.0", **arguments: Any) -> ResolvedEngine:
    return make_engine(make_model(Shape()), EngineConfig(**arguments), vllm_version=version)


def test_a_size_that_is_not_captured_ends_the_full_graphs() -> None:
    """max_num_seqs=100 before 0.32: 97 to 100 requests fall off the full graphs (vLLM pull request 57355)."""
    lines = list(replay_lines(engine(max_num_seqs=100)))
    assert replays(engine(max_num_seqs=100), 100, is_uniform_decode=True) == (
        Replay(1, 96, "full"),
        Replay(97, 100, "piecewise"),
    )
    assert lines[-1] == (
        "  cliff: max_num_seqs=100 is no captured size, so 97 to 100 requests lose their full graph; lower it to 96 or add "
        "100 to cudagraph_capture_sizes"
    )


def test_what_the_advice_says_removes_the_cliff() -> None:
    """Lowered to 96, with 100 captured, or on a version that captures max_num_seqs itself, all decodes are full."""
    sizes = (*range(1, 97, 5), 96, 100)
    for better in (
        engine(max_num_seqs=96),
        engine(max_num_seqs=100, cudagraph_capture_sizes=sizes),
        engine("0.33.0", max_num_seqs=100),
    ):
        assert [run.graph for run in replays(better, better.max_num_seqs, is_uniform_decode=True)] == ["full"]
        assert not [line for line in replay_lines(better) if "cliff" in line]


def test_batches_above_the_largest_size_have_no_graph() -> None:
    """1,024 requests at 512 captured: the upper half decodes without; raising the largest size is the cure."""
    assert list(replay_lines(engine(max_num_seqs=1024)))[1:] == [
        "  decoding 1 to 512 requests: a full graph",
        "  decoding 513 to 1,024 requests: no graph",
        "  with prompts, 1 to 512 tokens: a piecewise graph",
        "  with prompts, 513 to 8,192 tokens: no graph",
        "  cliff: more than 512 requests have no graph; lower max_num_seqs to 512 or raise max_cudagraph_capture_size to 1,024",
    ]
    cured = engine(max_num_seqs=1024, max_cudagraph_capture_size=1024)
    assert [run.graph for run in replays(cured, 1024, is_uniform_decode=True)] == ["full"]


def test_decode_only_graphs_end_at_a_captured_size_too() -> None:
    """Without piecewise graphs the last few requests have none at all; the advice is that for a size not captured."""
    lines = list(replay_lines(engine(max_num_seqs=100, cudagraph_mode="FULL_DECODE_ONLY")))
    assert "  decoding 97 to 100 requests: no graph" in lines
    assert "lower it to 96 or add 100" in lines[-1]


@pytest.mark.parametrize("arguments", [{"enforce_eager": True}, {"cudagraph_mode": "NONE"}])
def test_without_graphs_it_says_so(arguments: dict[str, Any]) -> None:
    """One line, and no cliff."""
    assert list(replay_lines(engine(**arguments))) == ["CUDA graphs: none; every step launches its kernels one by one"]
