"""Several traces on one clock."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from sim.errors import ConfigError, TraceError
from sim.workload.describe import describe
from sim.workload.merge import merge
from sim.workload.readers import read_trace
from sim.workload.reuse import reusable_tokens
from sim.workload.trace import Trace
from sim.workload.writers import write_trace
from tests.properties import examples
from tests.workload.makers import make_trace
from tests.workload.test_round_trip import same, traces


def test_requests_come_in_order_of_arrival_under_their_own_names() -> None:
    """Those of one time in the order of the traces; each column stays with its request."""
    left = make_trace((1.0, 2.0, 5.0), prompt_tokens=(1, 2, 3), priority=np.array([7, 8, 9]))
    right = make_trace((0.0, 2.0), prompt_tokens=(4, 5), lora_name=("sql", ""), n=np.array([2, 1]))
    merged = merge([left, right])
    assert merged.request_id == ("r0-1", "r0-0", "r1-0", "r1-1", "r2-0")
    assert merged.arrival_s.tolist() == [0.0, 1.0, 2.0, 2.0, 5.0]
    assert merged.prompt_tokens.tolist() == [4, 1, 2, 5, 3]
    np.testing.assert_array_equal(merged.priority, [0, 7, 8, 0, 9])
    np.testing.assert_array_equal(merged.n, [2, 1, 1, 1, 1])
    assert merged.lora_name == ("sql", "", "", "", "")
    assert (merged.session_id, merged.segments) == (None, None)


def test_traces_begin_together_where_asked() -> None:
    """Clocks of their own are laid on one another."""
    late, early = make_trace((1e9, 1e9 + 3)), make_trace((0.0, 1.0))
    assert merge([late, early], from_zero=True).arrival_s.tolist() == [0.0, 0.0, 1.0, 3.0]
    assert merge([late, early]).arrival_s.tolist() == [0.0, 1.0, 1e9, 1e9 + 3]


def test_sessions_and_contents_are_kept_apart() -> None:
    """The same trace twice finds twice what it finds alone; a prompt of which nothing is known finds nothing."""
    trace = read_trace("multi-turn", limit=100)
    twice = merge([trace, trace, make_trace((0.0,), prompt_tokens=(999,))])
    assert reusable_tokens(twice) == 2 * reusable_tokens(trace)
    sessions = describe(trace).num_sessions
    assert sessions is not None
    assert describe(twice).num_sessions == 2 * sessions + 1


def test_turns_without_hash_ids_go_with_single_requests() -> None:
    """A request of a trace without sessions is a session of its own."""
    turns = make_trace((0.0, 9.0), prompt_tokens=(160, 480), session_id=("a", "a"), think_time_s=np.array([0.0, 2.0]))
    merged = merge([turns, make_trace((1.0,), request_id=("a",))])
    assert merged.session_id == ("a-0", "a-1", "a-0")
    np.testing.assert_array_equal(merged.think_time_s, [0.0, 0.0, 2.0])
    assert reusable_tokens(merged) == reusable_tokens(turns)


@given(trace=traces().filter(lambda trace: trace.stage is None and trace.max_concurrency is None))
@examples(60)
def test_one_trace_stays_as_it_is_but_for_names(trace: Trace) -> None:
    """Contents are numbered as they come."""
    merged = merge([trace])
    for column in ("arrival_s", "prompt_tokens", "output_tokens", "n", "priority", "think_time_s"):
        np.testing.assert_array_equal(getattr(merged, column), getattr(trace, column))
    assert [name[:-2] for name in merged.request_id] == list(trace.request_id)
    assert reusable_tokens(merged) == reusable_tokens(trace)


def test_a_merged_trace_is_written_and_read(tmp_path: Path) -> None:
    """Blocks of 64 tokens, blocks of 16, and whole prompts."""
    merged = merge([read_trace("multi-turn", limit=50), read_trace("few-shot", limit=20), read_trace("chat", limit=20)])
    write_trace(merged, tmp_path / "t.jsonl")
    assert same(read_trace(tmp_path / "t.jsonl"), merged)


def test_what_has_nothing_to_stand_for_it_is_an_error() -> None:
    """Stages have no clock; sessions' prompts and drafts' lengths are not known."""
    plain = make_trace(source="plain.csv")
    staged = make_trace(stage=np.array([0, 1, 2]), source="staged.csv")
    with pytest.raises(TraceError, match=r"^staged\.csv: stages begin when the one before has ended"):
        merge([plain, staged])
    with pytest.raises(
        TraceError, match=r"limits of requests in flight \(`max_concurrency`\) are those of one benchmark"
    ):
        merge([plain, replace(plain, max_concurrency=np.full(len(plain), 4))])
    turns = make_trace(session_id=("a", "a", "b"), source="turns.csv")
    hashed = make_trace((0.0,), segments=[((1, 5),)], source="hashed.csv")
    with pytest.raises(
        TraceError, match=r"^turns\.csv: must have `hash_ids` to be merged with hashed\.csv, which has; "
    ):
        merge([hashed, turns])
    drafted = make_trace((0.0,), acceptance_length=np.array([2.0]), source="drafted.csv")
    with pytest.raises(TraceError, match=r"^plain\.csv: must have `acceptance_length` to be merged with drafted\.csv"):
        merge([drafted, plain])
    with pytest.raises(ConfigError, match=r"^traces are merged from at least one, got none; "):
        merge([])
