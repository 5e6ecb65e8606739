"""Passes done together: no fewer than are alike, and none beyond."""

from typing import Any

from tests.engines import Engine, simulate
from tests.makers import ONE_SECOND, Ask, make_config, make_trace, run

LONG = 1024
"""A prompt of that many tokens: from there on, leaps may have 64 steps."""


def leaps_of(*asks: Ask, **arguments: Any) -> list[int]:
    """The passes of each leap."""
    roomy = {"max_num_batched_tokens": 4 * LONG, "max_model_len": 8 * LONG, "num_gpu_blocks": 10_000}
    records = simulate(make_trace(asks), make_config(**roomy | arguments), ONE_SECOND)
    return [int(count) for count in records.leaps.whole.num_steps]


def test_a_decode_by_itself_is_one_leap_to_its_last_token() -> None:
    """The prompt's pass yields the first token; under async scheduling the second is launched before it is back."""
    assert leaps_of(Ask("A", LONG, 30)) == [1, 29]
    assert leaps_of(Ask("A", LONG, 30), async_scheduling=True) == [1, 29]


def test_a_leap_ends_with_a_last_token() -> None:
    """B's comes 9 passes after its first, A's 20 later."""
    assert leaps_of(Ask("A", LONG, 30), Ask("B", LONG, 10)) == [1, 9, 20]


def test_decodes_that_take_the_whole_budget_are_leapt_over() -> None:
    """Two tokens a step are what A and B need, who take two seats of three: C waits till they have ended."""
    asks = [Ask("A", 1, 40), Ask("B", 1, 40), Ask("C", 1, 1)]
    assert max(leaps_of(*asks, max_num_scheduled_tokens=2)) > 1


def test_a_leap_looks_again_when_blocks_of_a_request_with_one_token_come_back(engine: Engine) -> None:
    """14 blocks: C needs 3, and there are 2 until B's only token has come back, which is in the second pass."""
    asks = [Ask("A", 40, 15), Ask("B", 8, 1), Ask("C", 12, 1)]
    done = run(engine, asks, num_gpu_blocks=15, async_scheduling=True)
    assert done.tokens[:4] == [{"A": 40, "B": 8}, {"A": 1}, {"A": 1, "C": 12}, {"A": 1}]


def test_a_prompt_that_fills_the_budget_gets_more_of_it_when_a_decode_has_ended(engine: Engine) -> None:
    """Four tokens a step: three are left beside A, and when A has ended B's last four fit, and yield a token."""
    done = run(engine, [Ask("A", 1, 3), Ask("B", 13, 2)], max_num_batched_tokens=4)
    assert done.tokens == [{"A": 1, "B": 3}, {"A": 1, "B": 3}, {"A": 1, "B": 3}, {"B": 4}, {"B": 1}]


def test_who_comes_while_a_prompt_fills_the_budget_is_seen_by_the_pass_of_that_instant(engine: Engine) -> None:
    """B comes at 3 and has to wait for A's ten chunks."""
    done = run(engine, [Ask("A", 40, 1), Ask("B", 1, 1, at=3)], max_num_batched_tokens=4)
    assert [len(names) for names in done.column("waiting")] == [0, 0, 0, *[1] * 7, 0]
    assert done.records.steps.num_waiting.tolist() == [0, 0, 0, *[1] * 7, 0]
