"""Parts of a trace."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import ConfigError, TraceError
from sim.workload.readers import read_trace
from sim.workload.slice import slice_trace
from sim.workload.trace import Trace
from sim.workload.writers import write_trace
from tests.properties import examples
from tests.workload.makers import make_trace
from tests.workload.test_round_trip import same, traces

TIMES = (0.0, 10.0, 10.0, 20.0, 30.0, 40.0)
TALK = make_trace(TIMES, session_id=("a", "b", "a", "c", "b", "c"))


def names(trace: Trace) -> str:
    return " ".join(trace.request_id)


@pytest.mark.parametrize(
    ("from_s", "to_s", "limit", "rows"),
    [
        (10.0, 30.0, None, "r1 r2 r3"),
        (None, 10.0, None, "r0"),
        (10.5, None, None, "r3 r4 r5"),
        (10.0, None, 2, "r1 r2"),
        (None, None, 1, "r0"),
        (-math.inf, math.inf, 99, "r0 r1 r2 r3 r4 r5"),
    ],
)
def test_a_slice_is_half_open_and_keeps_times(
    from_s: float | None, to_s: float | None, limit: int | None, rows: str
) -> None:
    """The first of those that arrive from one time on and before another, as they are."""
    part = slice_trace(make_trace(TIMES), from_s=from_s, to_s=to_s, limit=limit)
    assert names(part) == rows
    assert part.arrival_s.tolist() == [TIMES[int(name[1:])] for name in rows.split()]
    assert part.notes == ()


def test_sessions_are_cut_and_it_is_said() -> None:
    """a and b have turns on both sides, c has one beyond."""
    part = slice_trace(TALK, from_s=10.0, to_s=30.0)
    assert names(part) == "r1 r2 r3"
    assert part.notes == ("3 of 3 sessions are cut: their turns beyond the slice are not there.",)
    assert slice_trace(TALK, from_s=0.0).notes == ("no session goes on beyond the slice.",)


def test_sessions_are_kept_whole_where_they_begin() -> None:
    """b and c begin in the slice, a before it."""
    part = slice_trace(TALK, from_s=10.0, to_s=30.0, whole_sessions=True)
    assert names(part) == "r1 r3 r4 r5"
    assert part.notes == (
        "sessions are kept whole: 2 later turns of those that begin in the slice are there, 1 turns of others are not.",
    )
    assert names(slice_trace(TALK, from_s=10.0, limit=1, whole_sessions=True)) == "r1 r4"


@given(trace=traces(), at=st.floats(0, 1e10))
@examples(60)
def test_two_slices_make_the_whole(trace: Trace, at: float) -> None:
    """Each request is in one of them, with all its columns."""
    count = int(np.searchsorted(trace.arrival_s, at))
    if count > 0:
        assert same(slice_trace(trace, to_s=at), trace.part(0, count))
    if count < len(trace):
        assert same(slice_trace(trace, from_s=at), trace.part(count, len(trace)))


def test_a_slice_is_written_and_read(tmp_path: Path) -> None:
    """Of a bundled trace with sessions and hash ids."""
    part = slice_trace(read_trace("multi-turn"), from_s=60, to_s=90, whole_sessions=True)
    write_trace(part, tmp_path / "t.jsonl")
    assert same(read_trace(tmp_path / "t.jsonl"), part)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            {"from_s": 41.0},
            r"^the trace: must have a request in the slice, got none from 41 s on; .* from 0 s to 40 s\.$",
        ),
        ({"from_s": 11.0, "to_s": 12.0}, "got none from 11 s on before 12 s; its"),
        (
            {"from_s": 30.0, "whole_sessions": True},
            "^the trace: must have a session that begins in the slice, got none; ",
        ),
    ],
)
def test_a_slice_with_nothing_is_an_error(arguments: dict[str, float], said: str) -> None:
    """With the times that there are."""
    with pytest.raises(TraceError, match=said):
        slice_trace(TALK, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"from_s": 5.0, "to_s": 5.0}, "^`from_s` must be below `to_s`, got 5 and 5; "),
        ({"from_s": math.nan}, "^`from_s` must be below `to_s`, got nan and inf; "),
        ({"limit": 0}, "^`limit` must be at least 1 request, got 0; "),
        ({"limit": 1, "whole_sessions": True}, "^`whole_sessions` is for traces with sessions, got one without; "),
    ],
)
def test_bad_bounds_are_errors(arguments: dict[str, float], said: str) -> None:
    """Each in a sentence."""
    with pytest.raises(ConfigError, match=said):
        slice_trace(make_trace(TIMES), **arguments)  # type: ignore[arg-type]
