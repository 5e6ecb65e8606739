"""Routers that look at little: who gets the next request."""

from collections import Counter

from sim.cluster.routers.sessions import HashRing
from tests.cluster.routers.makers import Requests, Shown, prompts

SHORT, LONG = ((1, 10),), ((1, 5000),)


def test_a_waiting_request_weighs_four_running_ones() -> None:
    """vLLM 0.11's score; equals take turns."""
    one = prompts(SHORT)
    assert Requests("least_loaded", one, [Shown(1, 0), Shown(0, 3)]).choose(0) == 1
    assert Requests("least_loaded", one, [Shown(1, 0), Shown(0, 5)]).choose(0) == 0
    assert Requests("least_loaded", prompts(*[SHORT] * 4), [Shown()] * 3).all() == [0, 1, 2, 0]
    assert Requests("round_robin", prompts(*[SHORT] * 3), [Shown(9, 9), Shown()]).all() == [0, 1, 0]


def test_random_is_even_and_the_seeds_own() -> None:
    trace = prompts(*[SHORT] * 3000)
    first = Requests("random", trace, [Shown()] * 3, seed=1).all()
    assert first == Requests("random", trace, [Shown()] * 3, seed=1).all()
    assert first != Requests("random", trace, [Shown()] * 3, seed=2).all()
    assert all(abs(count - 1000) < 4 * (3000 * 2 / 9) ** 0.5 for count in Counter(first).values())


def test_of_two_the_one_with_fewer_in_flight() -> None:
    """With two replicas both are drawn: unanswered requests spread evenly, and an answer frees its place."""
    asked = Requests("power_of_two", prompts(*[SHORT] * 20), [Shown(), Shown()])
    chosen = asked.all()
    assert chosen.count(0) == chosen.count(1) == 10
    asked.router.answered(asked.request(0), 1)
    assert asked.choose(0) == 1


def test_short_prompts_and_long_ones_have_pools_of_their_own() -> None:
    trace = prompts(SHORT, LONG, SHORT, LONG, LONG)
    assert Requests("prompt_length", trace, [Shown()] * 4).all() == [0, 2, 1, 3, 2]
    assert Requests("prompt_length:threshold=9", trace, [Shown()] * 4).all() == [2, 3, 2, 3, 2]
    assert Requests("prompt_length:short=3", trace, [Shown(1, 0), Shown(), Shown(1, 0), Shown()]).all() == [
        1,
        3,
        1,
        3,
        3,
    ]


def test_a_session_stays_where_it_is() -> None:
    sessions = tuple(f"session {row % 50}" for row in range(200))
    asked = Requests("consistent_hash", prompts(*[SHORT] * 200, session_id=sessions), [Shown()] * 4)
    chosen = asked.all()
    assert chosen[:50] * 4 == chosen
    assert set(chosen) == {0, 1, 2, 3}
    assert chosen == Requests("production_stack_session", asked.trace, asked.replicas).all()


def test_a_replica_less_moves_only_its_own_sessions() -> None:
    keys = [f"session {number}" for number in range(2000)]
    rings, four = (HashRing(3), HashRing(4)), [Shown(number=number) for number in range(4)]
    before = [rings[1].replica(key, four).number for key in keys]
    after = [rings[1].replica(key, four[:3]).number for key in keys]
    assert all(old in (new, 3) for old, new in zip(before, after, strict=True))
    assert after == [rings[0].replica(key, four[:3]).number for key in keys]
    counts = Counter(before)
    assert max(counts.values()) < 1.35 * min(counts.values())


def test_without_a_session_the_least_asked_of_the_last_minute() -> None:
    """One never asked comes first; requests that are older than the window do not count."""
    asked = Requests("production_stack_session:stats_window_s=2", prompts(*[SHORT] * 9), [Shown()] * 3)
    assert asked.all() == [0, 1, 2, 0, 1, 2, 0, 1, 2]
    asked = Requests("production_stack_session", prompts(*[SHORT] * 4, session_id=("a", "a", "a", "")), [Shown()] * 2)
    chosen = asked.all()
    assert chosen[3] == 1 - chosen[0]
