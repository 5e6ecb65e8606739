"""A trace made in Python is held to the rules of one read from a file."""

from typing import Any

import numpy as np
import pytest

from sim.errors import TraceError
from tests.workload.makers import make_trace


def test_duration_is_from_first_to_last_arrival() -> None:
    """A trace may start at any time."""
    assert make_trace((5.0, 7.5)).duration_s == 2.5


def test_the_first_requests_keep_all_columns() -> None:
    """Cutting a trace cuts each of its columns."""
    trace = make_trace(
        priority=np.array([3, 2, 1]),
        session_id=("a", "b", "c"),
        think_time_s=np.array([0.5, 1.0, 2.0]),
        stage=np.array([0, 0, 1]),
        segments=[((i, 4),) for i in range(3)],
    )
    first = trace.first(2)
    assert first.request_id == ("r0", "r1")
    assert first.priority is not None
    assert (first.priority.tolist(), first.session_id) == ([3, 2], ("a", "b"))
    assert first.segments == [((0, 4),), ((1, 4),)]
    assert first.think_time_s is not None
    assert first.think_time_s.tolist() == [0.5, 1.0]
    assert first.stage is not None
    assert first.stage.tolist() == [0, 0]


@pytest.mark.parametrize("values", [[0.0, -1.0, 0.0], [0.0, np.inf, 0.0]])
@pytest.mark.parametrize("column", ["think_time_s", "hold_s"])
def test_times_after_answers_are_finite_and_not_negative(column: str, values: list[float]) -> None:
    with pytest.raises(TraceError, match=f"`{column}` of a trace must"):
        make_trace(**dict[str, Any]({column: np.array(values)}))


def test_requests_of_a_line_have_one_limit() -> None:
    """A line is a stage's, or the whole trace's; a session has one."""
    limits = np.array([2, 2, 3])
    assert make_trace(max_concurrency=limits, stage=np.array([0, 0, 1])).lines.tolist() == [0, 0, 1]
    assert make_trace(max_concurrency=limits, line=np.array([5, 5, 2])).lines.tolist() == [1, 1, 0]
    with pytest.raises(
        TraceError, match="`max_concurrency` of a trace must be one in all requests of a stage and line"
    ):
        make_trace(max_concurrency=limits)
    with pytest.raises(TraceError, match="`max_concurrency` of a trace must be at least 1"):
        make_trace(max_concurrency=np.array([0, 0, 0]))
    with pytest.raises(TraceError, match="`line` of a trace must be one in all turns of a session, got 5 and 2 in 'a'"):
        make_trace(max_concurrency=limits, line=np.array([5, 5, 2]), session_id=("a", "b", "a"))


def test_a_prompt_has_at_least_one_answer() -> None:
    with pytest.raises(TraceError, match="`n` of a trace must be at least 1"):
        make_trace(n=np.array([1, 0, 2]))


def test_stages_do_not_fall() -> None:
    with pytest.raises(TraceError, match="`stage` of a trace must"):
        make_trace(stage=np.array([0, 1, 0]))


@pytest.mark.parametrize("times", [(1.0, 0.5), (0.0, float("nan")), (0.0, float("inf"))])
def test_times_must_be_finite_and_in_order(times: tuple[float, ...]) -> None:
    """What no clock shows is refused."""
    with pytest.raises(TraceError, match="`arrival_s` of a trace must be finite and must not fall"):
        make_trace(times)


def test_lengths_must_not_be_negative() -> None:
    """An empty prompt or output reaches the scheduler, a negative one does not."""
    assert len(make_trace((0.0,), prompt_tokens=(0,), output_tokens=(0,))) == 1
    with pytest.raises(TraceError, match="must not be negative"):
        make_trace((0.0,), prompt_tokens=(-1,))
    with pytest.raises(TraceError, match="must not be negative"):
        make_trace((0.0,), output_tokens=(-1,))


def test_columns_must_be_equally_long() -> None:
    """A column with an entry too many is refused."""
    with pytest.raises(TraceError, match=r"equally long, got lengths \[1, 2\]"):
        make_trace((0.0,), session_id=("a", "b"))


def test_a_trace_has_a_request() -> None:
    """Nothing to replay is refused."""
    with pytest.raises(TraceError, match="at least one request"):
        make_trace(())
