"""A trace under other names is the same load."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sim
from sim.errors import ConfigError
from sim.specs.engine import EngineConfig
from sim.workload.anonymise import anonymise
from sim.workload.readers import read_trace
from sim.workload.reuse import reusable_tokens
from sim.workload.stack_distance import reuses
from sim.workload.trace import Segment, Trace
from sim.workload.writers import write_trace
from tests.properties import examples
from tests.workload.makers import make_trace
from tests.workload.test_round_trip import same, traces

NAMED = ("trace", "arguments", "trace_sha256", "wall_time_s")


def with_adapters(trace: Trace) -> Trace:
    return replace(trace, session_id=None, lora_name=tuple(["", "sql", "chat"][row % 3] for row in range(len(trace))))


@pytest.mark.parametrize(
    ("trace", "how"),
    [
        (read_trace("multi-turn", limit=200), {}),
        (read_trace("multi-turn", limit=200), {"replicas": 2, "router": "llm_d"}),
        (replace(read_trace("multi-turn", limit=200), segments=None), {}),
        (with_adapters(read_trace("multi-turn", limit=200)), {}),
    ],
    ids=["hash ids", "replicas", "sessions", "adapters"],
)
def test_results_are_equal_to_the_byte(trace: Trace, how: dict[str, Any]) -> None:
    """Summary and requests, but for names and the fingerprint of the trace; a small cache has contents compete for room."""
    engine = EngineConfig(num_gpu_blocks_override=600, max_model_len=8192, enable_lora=trace.lora_name is not None)
    results = [
        sim.simulate("Llama-3.1-8B", "h100-sxm", one, engine=engine, intervals=False, **how)
        for one in (trace, anonymise(trace, seed=7))
    ]
    own, other = ({key: value for key, value in one.summary.items() if key not in NAMED} for one in results)
    assert own["prefix_cache_hit_rate"] > 0
    assert repr(own) == repr(other)
    names = ["request_id", "lora_name", "session_id"]
    tables = [one.requests.drop(columns=names, errors="ignore").to_csv() for one in results]
    assert tables[0] == tables[1]
    assert tables[0].count("\n") == 1 + len(trace)


def test_no_name_is_left_and_the_seed_draws_the_others() -> None:
    """Requests by row; sessions and adapters by numbers; the base model has no name. The same seed gives the same."""
    trace = make_trace(session_id=("ann", "ben", "ann"), lora_name=("tax", "", "tax"), source="ann.csv", notes=("ann",))
    new = anonymise(trace)
    assert new.request_id == ("r0", "r1", "r2")
    assert (new.session_id, new.lora_name) in [
        (sessions, lora)
        for sessions in (("session-0", "session-1", "session-0"), ("session-1", "session-0", "session-1"))
        for lora in (("adapter-0", "", "adapter-0"), ("adapter-1", "", "adapter-1"))
    ]
    assert (new.source, new.notes) == ("", ())
    long = read_trace("multi-turn")
    assert same(anonymise(long, seed=3), anonymise(long, seed=3))
    assert anonymise(long, seed=3).session_id != anonymise(long, seed=4).session_id
    assert list(anonymise(long, seed=3).segments or ()) != list(anonymise(long, seed=4).segments or ())


def test_equal_ids_are_left_only_where_prompts_are_shared() -> None:
    """The 2 behind 1 twice is one content, behind 3 another; under an adapter the same prompt is another, too."""
    prompts = [((1, 16), (2, 16)), ((1, 16), (2, 16)), ((3, 16), (2, 16)), ((1, 16), (2, 16))]
    trace = make_trace(range(4), segments=prompts, lora_name=("", "", "", "sql"))
    ids = [[content for content, _ in prompt] for prompt in anonymise(trace).segments or ()]
    assert ids[0] == ids[1]
    assert len({*ids[0], *ids[2], *ids[3]}) == 6


@given(trace=traces(), seed=st.integers(0, 9), round_tokens=st.sampled_from([1, 10, 1000]))
@examples(100)
def test_what_is_shared_stays(trace: Trace, seed: int, round_tokens: int) -> None:
    """Whatever the trace; lengths are multiples, or end within their block, and blocks are as many."""
    new = anonymise(trace, seed=seed, round_tokens=round_tokens)
    np.testing.assert_array_equal(new.arrival_s, trace.arrival_s)
    if round_tokens == 1:
        np.testing.assert_array_equal(new.prompt_tokens, trace.prompt_tokens)
        assert reusable_tokens(new) == reusable_tokens(trace)
    if trace.segments is not None:
        assert new.segments is not None
        assert list(map(len, new.segments)) == list(map(len, trace.segments))
        assert [sum(n for _, n in path) for path in new.segments] == new.prompt_tokens.tolist()
    else:
        whole = (new.prompt_tokens % round_tokens == 0) | (new.prompt_tokens == 2**31 - 1)
        assert whole.all()
    assert new.output_tokens.min() >= 1


def test_rounding_keeps_prompts_within_their_last_block() -> None:
    """To the nearest hundred: 120 tokens in blocks of 64 end within the second, at 100; 130 cannot leave the third."""
    segments: list[tuple[Segment, ...]] = [((1, 64), (2, 56)), ((1, 64), (2, 64), (3, 2)), ((4, 10),)]
    new = anonymise(make_trace(segments=segments, output_tokens=(49, 50, 1234)), round_tokens=100)
    assert new.prompt_tokens.tolist() == [100, 129, 64]
    assert new.output_tokens.tolist() == [100, 100, 1200]


def test_written_and_read_it_is_the_same(tmp_path: Path) -> None:
    """Rounded or not, with the same hit rates at every size."""
    trace = read_trace("few-shot", limit=200)
    new = anonymise(trace, seed=1)
    write_trace(new, tmp_path / "t.csv")
    assert same(read_trace(tmp_path / "t.csv"), new)
    for size in (1_000, 10_000, 100_000):
        assert reuses(new).hit_rate(size) == reuses(trace).hit_rate(size)
    rounded = anonymise(trace, round_tokens=50)
    write_trace(rounded, tmp_path / "r.jsonl")
    assert same(read_trace(tmp_path / "r.jsonl"), rounded)


def test_no_multiple_is_an_error() -> None:
    """1 leaves lengths as they are."""
    with pytest.raises(ConfigError, match=r"^`round_tokens` must be from 1 to 2,147,483,647, got 0; "):
        anonymise(make_trace(), round_tokens=0)
