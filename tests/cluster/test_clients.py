"""Who sends a request when: turns after answers, at most so many at a time, users who think, stages that drain."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.clients import AT_THEIR_TIMES, Clients
from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.simulation import simulate
from sim.cluster.users import Users, parse_users
from sim.engine.records import RequestRecords
from sim.errors import ConfigError
from sim.workload.trace import Trace
from tests.makers import ONE_SECOND, make_config
from tests.properties import engine_examples as examples
from tests.workloads import conversations


def asked(arrivals: list[float], outputs: list[int], sessions: str = "", thinks: tuple[float, ...] = ()) -> Trace:
    """Prompts of one token, so that a request alone takes as many seconds as its output has tokens."""
    return Trace(
        request_id=tuple(f"r{row}" for row in range(len(arrivals))),
        arrival_s=np.array(arrivals, dtype=np.float64),
        prompt_tokens=np.ones(len(arrivals), dtype=np.int64),
        output_tokens=np.array(outputs),
        session_id=tuple(sessions) or None,
        think_time_s=np.array(thinks) if thinks else None,
    )


def served(trace: Trace, clients: Clients = AT_THEIR_TIMES, **arguments: int) -> RequestRecords:
    return simulate(trace, FleetPlan.alike(make_config(**arguments), ONE_SECOND), clients=clients).merged.requests


def test_a_turn_waits_for_the_answer_before_it_and_for_its_think_time() -> None:
    """A's second turn would come at 2 and is sent at 5 + 3; its third comes at 30, long after; B waits for nobody."""
    trace = asked([0, 1, 2, 30], [5, 4, 2, 1], "abaa", (9, 9, 3, 3))
    assert served(trace).arrival_s.tolist() == [0, 1, 8, 30]
    assert served(trace, Clients(open_loop=True)).arrival_s.tolist() == [0, 1, 2, 30]


def test_turns_that_come_all_at_once_are_sent_one_after_the_other() -> None:
    """A chain of an agent's calls, with the time that its tools take."""
    found = served(asked([0, 0, 0], [5, 4, 2], "aaa", (0, 10, 0.5)))
    assert found.arrival_s.tolist() == [0, 15, 19.5]
    assert found.finish_s.tolist() == [5, 19, 21.5]


def test_a_rejected_turn_is_waited_for_by_nobody() -> None:
    """The third turn follows the first; the second is refused when it would have come."""
    trace = replace(asked([0, 1, 2], [5, 4, 2], "aaa", (0, 7, 1)), prompt_tokens=np.array([1, 2000, 1]))
    found = served(trace)
    assert list(found.rejected) == [1]
    assert found.arrival_s.tolist() == [0, 1, 6]


def test_at_most_so_many_are_in_flight_and_the_clock_starts_when_they_are_sent() -> None:
    """Two slots: the third, come at 2, is sent when the second ends at 4; the fourth follows it in line."""
    trace = asked([0, 1, 2, 2], [9, 3, 2, 1])
    found = served(trace, Clients(max_concurrency=2))
    assert found.arrival_s.tolist() == [0, 1, 4, 6]
    assert (found.first_token_s - found.arrival_s).tolist() == [1, 1, 1, 1]


def test_a_turn_takes_its_place_in_the_line_when_it_may_be_sent() -> None:
    """One slot: the turn that waits for its predecessor lets the stranger who came after it go first."""
    found = served(asked([0, 1, 2], [5, 4, 2], "aab"), Clients(max_concurrency=1))
    assert found.arrival_s.tolist() == [0, 7, 5]


def in_lines(trace: Trace, limits: list[int], line: list[int] | None = None, hold_s: tuple[float, ...] = ()) -> Trace:
    return replace(
        trace,
        line=None if line is None else np.array(line),
        max_concurrency=np.array(limits),
        hold_s=np.array(hold_s) if hold_s else None,
    )


def test_each_line_of_a_trace_has_a_limit_of_its_own() -> None:
    """Line 7 has one place, and line 0 two: nobody waits behind those of the other line."""
    trace = in_lines(asked([0, 0, 0, 0, 0], [4, 4, 3, 3, 3]), [1, 1, 2, 2, 2], [7, 7, 0, 0, 0])
    assert served(trace).arrival_s.tolist() == [0, 4, 0, 0, 3]
    assert served(trace, Clients(open_loop=True)).arrival_s.tolist() == [0] * 5


def test_a_turn_of_a_line_has_its_place_while_it_waits_for_the_turn_before_it() -> None:
    """As inference-perf's workers: the stranger who came after it waits behind it, where `--max-concurrency 2` lets him pass."""
    trace = asked([0, 1, 2], [5, 4, 2], "aab")
    assert served(in_lines(trace, [2, 2, 2])).arrival_s.tolist() == [0, 5, 5]
    assert served(trace, Clients(max_concurrency=2)).arrival_s.tolist() == [0, 5, 2]


def test_a_request_is_held_after_its_answer_by_place_session_and_stage() -> None:
    """Ten seconds of a tool after each answer but the last, which nothing waits for."""
    held = (10.0, 10.0, 0.5)
    assert served(in_lines(asked([0, 0, 0], [5, 4, 2]), [1, 1, 1], hold_s=held)).arrival_s.tolist() == [0, 15, 29]
    talked = replace(asked([0, 0, 0], [5, 4, 2], "aaa", (0, 1, 1)), hold_s=np.array(held))
    assert served(talked).arrival_s.tolist() == [0, 16, 31]
    staged = replace(asked([0, 2, 3], [5, 4, 2]), stage=np.array([0, 0, 1]), hold_s=np.array(held))
    assert served(staged).arrival_s.tolist() == [0, 2, 17]
    assert served(staged, Clients(open_loop=True)).arrival_s.tolist() == [0, 2, 3]


def test_a_stage_has_a_limit_of_its_own() -> None:
    """One at a time, then two."""
    trace = in_lines(replace(asked([0, 0, 5, 5], [3, 3, 4, 4]), stage=np.array([0, 0, 1, 1])), [1, 1, 2, 2])
    assert served(trace).arrival_s.tolist() == [0, 3, 11, 11]


def test_users_take_requests_in_order_and_think() -> None:
    """Two users; the trace's times do not count."""
    trace = asked([3, 100, 200, 300], [5, 2, 2, 1])
    found = served(trace, Clients(Users(2, 1.5)))
    assert found.arrival_s.tolist() == [0, 0, 3.5, 6.5]


def test_users_take_whole_sessions() -> None:
    """Within a session the trace's think time passes, between sessions the user's own."""
    trace = asked([0, 0, 0, 0], [5, 4, 2, 1], "abab", (0, 0, 10, 20))
    assert served(trace, Clients(Users(1, 2.0))).arrival_s.tolist() == [0, 19, 15, 43]


def test_the_next_stage_begins_when_the_one_before_has_drained() -> None:
    """A gap of 10 s lies between the last arrival of stage 0, at 2, and the first of stage 1: it begins 10 s after the drain."""
    trace = replace(asked([0, 2, 12, 13, 20], [9, 30, 1, 5, 1]), stage=np.array([0, 0, 1, 1, 4]))
    assert served(trace).arrival_s.tolist() == [0, 2, 42, 43, 55]
    assert served(trace, Clients(open_loop=True)).arrival_s.tolist() == [0, 2, 12, 13, 20]


def test_a_stage_without_requests_that_run_holds_nobody_up() -> None:
    trace = replace(asked([0, 2, 12], [9, 3, 1]), stage=np.array([0, 1, 2]), prompt_tokens=np.array([1, 5000, 1]))
    assert served(trace).arrival_s.tolist() == [0, 2, 21]


def test_equal_seeds_are_equal_users() -> None:
    """Each user thinks for itself, the same in every run."""
    trace = asked([0.0] * 40, [3] * 40)
    runs = [served(trace, Clients(Users(4, 5.0, "exponential", seed))).arrival_s.tolist() for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


@examples(60)
@given(trace=conversations(), limit=st.integers(1, 3), kind=st.sampled_from(("sessions", "limit", "users", "both")))
def test_every_request_ends_once_and_none_comes_before_its_time(trace: Trace, limit: int, kind: str) -> None:
    """All tokens are made; no turn before its predecessor's end; in flight are never more than the limit."""
    users = Users(limit, 2.0) if kind == "users" else None
    limited = kind in {"limit", "both"}
    clients = Clients(users, limit if limited else None, open_loop=kind == "limit")
    found = served(trace, clients)
    assert found.generated_tokens.tolist() == trace.output_tokens.tolist()
    assert np.isfinite(found.finish_s).all()
    if not users:
        assert (found.arrival_s >= trace.arrival_s).all()
    if users or limited:
        for now in found.arrival_s:
            assert ((found.arrival_s <= now) & (found.finish_s > now)).sum() <= limit
    if not clients.open_loop:
        last: dict[str, float] = {}
        for session, arrival_s, finish_s in zip(trace.session_id or (), found.arrival_s, found.finish_s, strict=True):
            assert arrival_s >= last.get(session, -1)
            last[session] = finish_s


@pytest.mark.parametrize(
    ("users", "think_time", "expected"),
    [
        (3, None, Users(3)),
        (3, 5, Users(3, 5.0)),
        (3, "0.5", Users(3, 0.5)),
        (1, "exponential:7", Users(1, 7.0, "exponential")),
    ],
)
def test_think_times_as_they_are_written(users: int, think_time: float | str | None, expected: Users) -> None:
    assert parse_users(users, think_time) == expected


@pytest.mark.parametrize(
    ("users", "think_time", "message"),
    [
        (0, None, "`users` must be from 1"),
        (2, "uniform:3", "a think time must be seconds such as 5 or exponential:5, got 'uniform:3'"),
        (2, "exponentail:3", "Did you mean exponential"),
        (2, "soon", "got 'soon'"),
        (2, -1, "from 0 to 1e"),
        (None, 3, "say how many with `users`"),
    ],
)
def test_users_that_cannot_be_are_refused(users: int | None, think_time: float | str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_users(users, think_time)


def test_what_contradicts_itself_is_refused() -> None:
    trace = asked([0, 0], [1, 1])
    for clients, what in (
        (Clients(max_concurrency=0), "`max_concurrency` must be from 1"),
        (Clients(Users(1), max_concurrency=2), "max_concurrency means nothing"),
        (Clients(Users(1), open_loop=True), "open_loop means nothing"),
    ):
        with pytest.raises(ConfigError, match=what):
            served(trace, clients)
    with pytest.raises(ConfigError, match="a `max_concurrency` column means nothing"):
        served(in_lines(trace, [1, 1]), Clients(Users(1)))
    with pytest.raises(ConfigError, match="a `stage` column means nothing"):
        served(replace(trace, stage=np.array([0, 1])), Clients(Users(1)))
