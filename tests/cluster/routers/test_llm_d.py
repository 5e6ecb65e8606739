"""llm-d's filter and scorers, by hand."""

from collections.abc import Sequence
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.routers import llm_d
from sim.errors import ConfigError
from tests.cluster.routers.makers import Requests, Shown, prompts
from tests.properties import engine_examples as examples

PROMPT = ((1, 160),)


def test_weights_2_2_3_as_llm_d_has_them() -> None:
    """A prefix of 3 outweighs an emptier cache of at most 2, and not a shorter queue beside it."""
    replicas = [Shown(), Shown(kv_cache_usage=0.01)]
    asked = Requests("llm_d:scrape_interval_s=1", prompts(*[PROMPT] * 4), replicas)
    assert asked.choose(0) == 0
    asked.replicas[0].kv_cache_usage = 1.0
    assert asked.choose(1) == 0
    asked.replicas[0].num_waiting = 1
    assert asked.choose(2) == 1
    assert Requests("llm_d:prefix=5,scrape_interval_s=1", asked.trace, asked.replicas).all() == [1, 1, 1, 1]


def test_metrics_are_as_old_as_the_scrape() -> None:
    """Requests come every second, metrics every 2 s."""
    replicas = [Shown(), Shown(num_waiting=1)]
    asked = Requests("llm_d:prefix=0,scrape_interval_s=2", prompts(*[PROMPT] * 3), replicas)
    assert asked.choose(0) == 0
    asked.replicas[0].num_waiting = 2
    assert asked.choose(1) == 0
    assert asked.choose(2) == 1


def test_equals_are_drawn() -> None:
    chosen = Requests("llm_d", prompts(*[((row, 5),) for row in range(300)]), [Shown()] * 3).all()
    assert all(70 < chosen.count(replica) < 130 for replica in range(3))


@pytest.mark.parametrize(
    ("picker", "usages", "shares"),
    [
        ("weighted_random", (0.0, 0.5, 1.0), (400, 200, 0)),
        ("weighted_random", (1.0, 1.0, 1.0), (200, 200, 200)),
        ("random", (0.0, 0.5, 1.0), (200, 200, 200)),
        ("max_score", (0.0, 0.5, 1.0), (600, 0, 0)),
    ],
)
def test_a_picker_draws_by_the_score(picker: str, usages: Sequence[float], shares: Sequence[int]) -> None:
    """A chance as large as its sum, which is here what is free of its cache; where nobody has any, the same for all."""
    replicas = [Shown(kv_cache_usage=usage) for usage in usages]
    trace = prompts(*[((row, 5),) for row in range(600)])
    chosen = Requests(f"llm_d:queue=0,prefix=0,kv=1,picker={picker}", trace, replicas).all()
    assert all(abs(chosen.count(number) - share) < 50 for number, share in enumerate(shares))
    assert all(chosen.count(number) == 0 for number, share in enumerate(shares) if not share)


def test_precise_prefixes_are_those_of_the_caches() -> None:
    replicas = [Shown(), Shown(num_cached=5), Shown(num_cached=9)]
    assert Requests("llm_d_precise", prompts(PROMPT), replicas).send(0).choose(0) == 2


def test_caches_are_asked_for_prompts_that_begin_as_one_they_were_sent_and_for_no_other() -> None:
    """Three prompts, two of which begin alike; each replica would say that it holds nine blocks of any."""
    trace = prompts(((1, 32), (2, 128)), ((1, 32), (3, 128)), ((4, 160),))
    asked = Requests("llm_d_precise", trace, [Shown(num_cached=9)] * 3)
    first = asked.choose(0)
    assert asked.choose(1) == first
    chosen = [Requests("llm_d_precise", trace, asked.replicas, seed=seed) for seed in range(20)]
    assert {(one.choose(0), one.choose(2)) for one in chosen} > {(0, 1), (1, 0)}


def test_precise_prefixes_go_on_in_host_memory() -> None:
    """Blocks there count 0.8 each, or as they are told to; an index of what was sent there has no place beside that."""
    replicas = [Shown(num_cached=5), Shown(num_cached=1, num_offloaded=7)]
    assert Requests("llm_d_precise", prompts(PROMPT), replicas).send(0).choose(0) == 1
    assert Requests("llm_d_precise:cpu_weight=0.5", prompts(PROMPT), replicas).send(0).choose(0) == 0
    with pytest.raises(ConfigError, match="llm_d_precise knows what is in host memory, and weighs it by cpu_weight"):
        Requests("llm_d_precise:cpu_prefix=1", prompts(PROMPT), replicas)


def test_an_index_of_host_memory_remembers_what_the_other_has_forgotten() -> None:
    """Three prompts of ten blocks, of which the first index holds one; or three, where it looks at three blocks of each."""
    trace = prompts(((1, 160),), ((2, 160),), ((3, 160),), ((1, 160),))
    for router, is_known in (
        ("lru_blocks=10", False),
        ("lru_blocks=10,cpu_prefix=1", True),
        ("lru_blocks=10,max_prefix_tokens=48", True),
    ):
        chosen = [Requests(f"llm_d:queue=0,kv=0,{router}", trace, [Shown()] * 9, seed=seed).all() for seed in range(20)]
        assert all(first == last for first, *_, last in chosen) is is_known


def test_cold_requests_go_where_the_last_was_longest_ago() -> None:
    trace = prompts(*[((row, 40),) for row in range(5)])
    assert Requests("llm_d:queue=0,kv=0,no_hit_lru=1", trace, [Shown()] * 3).all() == [0, 1, 2, 0, 1]


def test_affinity_breaks_when_too_much_is_in_flight() -> None:
    """Two replicas; a prompt's holder keeps it until 40 tokens more wait there than elsewhere."""
    tail = [((1, 160), (row, 40)) for row in range(2, 8)]
    trace = prompts(*tail)
    asked = Requests("llm_d_optimized_baseline", trace, [Shown(), Shown()])
    first = asked.choose(0)
    assert [asked.choose(row) for row in range(1, 6)] == [first] * 5
    asked = Requests(
        "llm_d_optimized_baseline:max_penalty_tokens=260,affinity_threshold=0.7", trace, [Shown(), Shown()]
    )
    first = asked.choose(0)
    assert [asked.choose(row) for row in range(1, 4)] == [first, first, 1 - first]


def test_tokens_in_flight_may_count_until_the_answer_has_come() -> None:
    """A prompt that is computed before the next one comes counts no more, or until its answer has come."""
    trace = prompts(((1, 200),), ((2, 200),))

    def chosen_after(router: str, *, is_answered: bool) -> set[bool]:
        """Whether the second is sent where the first was."""
        found = set()
        for seed in range(20):
            asked = Requests(f"llm_d:queue=0,kv=0,prefix=0,token_load=1,{router}", trace, [Shown(), Shown()], seed=seed)
            first = asked.request(0)
            where = asked.router.choose(first, asked.replicas).number
            first.time_first_token(0.5)
            if is_answered:
                asked.router.answered(first, where)
            found.add(asked.choose(1) == where)
        return found

    assert chosen_after("output_ratio=0", is_answered=False) == {True, False}
    assert chosen_after("output_ratio=1.5", is_answered=False) == {False}
    assert chosen_after("output_ratio=1.5", is_answered=True) == {True, False}


heads = st.lists(st.tuples(st.integers(0, 1), st.sampled_from((16, 16, 32, 160, 3_000_000))), min_size=1, max_size=2)
tails = st.sampled_from((16, 16, 32, 160, 2_000_000))
baselines = st.builds(
    "llm_d_optimized_baseline:affinity_threshold={},max_penalty_tokens={},token_load={},output_ratio={}".format,
    st.sampled_from((0, 0.3, 0.6)),
    st.sampled_from((0, 1, 100)),
    st.sampled_from((1, 0.3)),
    st.sampled_from((0, 0, 1.5, 0.7)),
)


@examples(200)
@given(
    asked=st.lists(st.tuples(heads, tails), min_size=1, max_size=16),
    num_replicas=st.integers(2, 5),
    router=st.sampled_from(("llm_d",)) | baselines,
)
def test_few_holders_are_looked_at_alone_to_the_same_end(
    asked: list[tuple[list[tuple[int, int]], int]], num_replicas: int, router: str
) -> None:
    """Columns of all replicas choose the same, also where more tokens are in flight than scores tell apart."""
    trace = prompts(*((*head, (2 + row, tokens)) for row, (head, tokens) in enumerate(asked)))
    found = Requests(router, trace, [Shown()] * num_replicas).all()
    with patch.object(llm_d, "FEW", -1):
        assert found == Requests(router, trace, [Shown()] * num_replicas).all()


def test_what_a_replica_held_is_gone_with_it() -> None:
    same = prompts(*[((1, 160),)] * 3)
    asked = Requests("llm_d", same, [Shown(), Shown(num_waiting=1)])
    assert [asked.choose(0), asked.choose(1)] == [0, 0]
    asked.router.left(0)
    asked.replicas[0].num_waiting, asked.replicas[1].num_waiting = 1, 0
    assert asked.choose(2) == 1
