"""Models with sliding windows: blocks come free as requests run, and no pass looks at every request for that."""

from typing import Any

import numpy as np
import pytest

from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.simulation import simulate as simulate_cluster
from sim.engine.config import KVGroup
from sim.engine.passed_blocks import PassedBlocks
from sim.engine.request import Request
from sim.engine.windows import WindowFrees
from tests.engine.test_metamorphic import facts
from tests.engines import ENGINES
from tests.makers import ONE_SECOND, Ask, make_config, make_trace, replay

SLIDING = (KVGroup(), KVGroup(window=8))


def decoding(prompt: int, outputs: int, prefilled_in: int) -> Request:
    request = Request(0, "A", 0.0, prompt, outputs)
    request.epoch = prefilled_in - prompt
    request.last_pass = request.epoch + prompt + outputs - 1
    return request


def test_a_window_passes_a_block_every_block_size_tokens() -> None:
    """Blocks of 4, a window of 8, sync: a request of 6 tokens by pass 0 has processed 11 before pass 6, and passes block 0."""
    passings = WindowFrees([None, 8], PassedBlocks(block_size=4, num_groups=2))
    passings.enter(decoding(prompt=6, outputs=100, prefilled_in=0), step=1)
    assert passings.next_begin == 2
    passings.advance(2)
    assert [passings.num_blocks(step, 1) for step in range(3, 12)] == [0, 0, 0, 1, 0, 0, 0, 1, 0]
    assert passings.num_blocks(3, 41) == 10


def test_windows_begin_in_their_own_order() -> None:
    """A's window begins with pass 2, that of B, who has 3 tokens fewer, with pass 5."""
    passings = WindowFrees([8], PassedBlocks(block_size=4))
    passings.enter(decoding(prompt=6, outputs=100, prefilled_in=0), step=1)
    passings.enter(decoding(prompt=3, outputs=100, prefilled_in=0), step=1)
    assert passings.next_begin == 2
    passings.advance(2)
    assert passings.next_begin == 5


def test_who_leaves_knows_what_its_windows_have_passed() -> None:
    """After pass 10 two blocks are passed of the sliding group and none of the other, and nothing is due any more."""
    passings, request = (
        WindowFrees([None, 8], PassedBlocks(block_size=4, num_groups=2)),
        decoding(prompt=6, outputs=100, prefilled_in=0),
    )
    passings.enter(request, step=1)
    passings.advance(10)
    passings.leave(request, 10)
    assert request.passed_blocks == [0, 2]
    assert passings.due == [0, 0, 0, 0]


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize("caching", [True, False])
def test_long_decodes_with_windows_are_leapt_over(caching: bool, shares: bool) -> None:
    """Three requests of 900 tokens take some leaps, not 900; free blocks are told for every step as the naive engine does."""
    parts = [((0, 16), (1 + row, 4 + row)) for row in range(3)]
    asks = [Ask(f"r{row}", parts[row] if shares else 20 + row, 900, at=3 * row) for row in range(3)]
    config = make_config(kv_groups=SLIDING, enable_prefix_caching=caching, async_scheduling=True)
    records = [ENGINES[name](make_trace(asks), config, ONE_SECOND) for name in ("fast", "reference")]
    assert len(records[0].leaps) < 120
    assert records[0].leaps.fewest_free_blocks == records[1].steps.num_free_blocks.min()
    for name in ("num_free_blocks", "num_running", "end_s"):
        np.testing.assert_array_equal(getattr(records[0].steps, name), getattr(records[1].steps, name))


SHARED = ((0, 96),)


@pytest.mark.parametrize("is_async", [True, False])
def test_blocks_that_others_may_ask_for_are_leapt_over_too(is_async: bool) -> None:
    """A's window leaves 20 such blocks behind while it decodes; they and what is left of them later are B's hit."""
    asks = [Ask("A", SHARED, 200), Ask("B", SHARED, 20, at=260)]
    config = make_config(num_gpu_blocks=300, kv_groups=(KVGroup(), KVGroup(window=80)), async_scheduling=is_async)
    fast, naive = (replay(ENGINES[name], make_trace(asks), config, ONE_SECOND) for name in ("fast", "reference"))
    assert fast.records.prefix_cache_hits > 0
    assert len(fast.records.leaps) < 18
    assert facts(fast) == facts(naive)


@pytest.mark.parametrize("at", [3, 8, 17, 21])
@pytest.mark.parametrize("ends_first", ["A", "B"])
def test_blocks_that_two_hold_come_free_with_the_second(at: float, ends_first: str) -> None:
    """B takes hold of A's prompt while A's window passes it, and the rest of both is leapt over."""
    outputs = (25, 90) if ends_first == "A" else (90, 10)
    asks = [Ask("A", SHARED, outputs[0]), Ask("B", SHARED, outputs[1], at=at), Ask("C", SHARED, 5, at=150)]
    config = make_config(num_gpu_blocks=120, kv_groups=(KVGroup(), KVGroup(window=80)), async_scheduling=True)
    fast, naive = (replay(ENGINES[name], make_trace(asks), config, ONE_SECOND) for name in ("fast", "reference"))
    assert fast.records.prefix_cache_hits > 0
    assert facts(fast) == facts(naive)


def test_what_two_pass_in_one_leap_lies_in_the_order_of_their_admission() -> None:
    """A and B pass blocks that C and D ask for; B, admitted second, is noted first."""
    asks = [
        Ask("A", ((0, 64), (1, 9)), 60),
        Ask("B", ((5, 16), (2, 6)), 60),
        Ask("C", ((0, 64),), 5, at=42),
        Ask("D", ((5, 48),), 5, at=50),
        Ask("E", 40, 5, at=66),
    ]
    config = make_config(
        num_gpu_blocks=70,
        kv_groups=(KVGroup(), KVGroup(window=40)),
        async_scheduling=True,
        long_prefill_token_threshold=8,
        max_model_len=400,
    )
    fast, naive = (replay(ENGINES[name], make_trace(asks), config, ONE_SECOND) for name in ("fast", "reference"))
    assert facts(fast) == facts(naive)


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("window", [31, 44])
def test_a_leap_ends_where_a_window_begins_to_pass_blocks(window: int, is_async: bool) -> None:
    """Blocks of a token: 31 tokens are full as the decode settles, 44 in the midst of what would else be one leap."""
    groups = (KVGroup(), KVGroup(window=window))
    config = make_config(block_size=1, kv_groups=groups, enable_prefix_caching=False, async_scheduling=is_async)
    trace = make_trace([Ask("A", 30, 40)])
    fast, naive = (replay(ENGINES[name], trace, config, ONE_SECOND) for name in ("fast", "reference"))
    assert len(fast.records.leaps) < 30
    assert facts(fast) == facts(naive)


@pytest.mark.parametrize(
    ("asks", "num_gpu_blocks", "groups", "limits"),
    [
        (
            [Ask("B", 4, 13, at=4), Ask("A", ((0, 13),), 10, at=6), Ask("Z", ((0, 9), (9, 4)), 3, at=15)],
            35,
            (None, 3),
            (16, 0),
        ),
        (
            [Ask("A", ((0, 8),), 16), Ask("B", 4, 24), Ask("C", 12, 22, at=1), Ask("Z", ((0, 8), (9, 4)), 3, at=19)],
            29,
            (3,),
            (16, 0),
        ),
        ([Ask("A", ((0, 20),), 5), Ask("B", 20, 3), Ask("Z", ((0, 8), (9, 4)), 3, at=14)], 1000, (3,), (4, 3)),
    ],
    ids=["after others", "before others", "prompts that share the budget"],
)
def test_what_windows_pass_is_found_again_in_the_order_of_vllm(
    asks: list[Ask], num_gpu_blocks: int, groups: tuple[int | None, ...], limits: tuple[int, int]
) -> None:
    """Z asks for what windows of A have passed, beside others who pass blocks in the same pass, before and after A."""
    config = make_config(
        num_gpu_blocks=num_gpu_blocks,
        block_size=2,
        kv_groups=tuple(map(KVGroup, groups)),
        max_num_batched_tokens=limits[0],
        long_prefill_token_threshold=limits[1],
    )
    fast, naive = (replay(ENGINES[name], make_trace(asks), config, ONE_SECOND) for name in ("fast", "reference"))
    assert facts(fast) == facts(naive)


@pytest.mark.parametrize("prompts", [(30, 30), (((0, 8), (1, 22)), ((0, 8), (2, 22)))])
@pytest.mark.parametrize("caching", [True, False])
def test_engines_agree_where_requests_with_windows_are_preempted(prompts: tuple[Any, Any], caching: bool) -> None:
    """A and B pass blocks all the time, and make room for each other."""
    asks = [Ask("A", prompts[0], 40), Ask("B", prompts[1], 40)]
    config = make_config(num_gpu_blocks=40, kv_groups=SLIDING, enable_prefix_caching=caching, max_model_len=100)
    fast, naive = (replay(ENGINES[name], make_trace(asks), config, ONE_SECOND) for name in ("fast", "reference"))
    assert fast.records.requests.num_preemptions.sum() > 0
    assert facts(fast) == facts(naive)


def test_who_was_preempted_finds_what_its_windows_had_passed() -> None:
    """Blocks of 4, a window of 3: what A or B had left behind before it made room is still free, and found."""
    asks = [Ask("A", ((0, 1),), 11), Ask("B", ((0, 1),), 17), Ask("C", ((0, 9),), 8)]
    config = make_config(
        num_gpu_blocks=12,
        max_num_batched_tokens=19,
        max_model_len=19,
        scheduling_policy="priority",
        async_scheduling=True,
        scheduler_reserve_full_isl=False,
        enable_chunked_prefill=False,
        kv_groups=(KVGroup(), KVGroup(window=3)),
    )
    fast, naive = (replay(ENGINES[name], make_trace(asks), config, ONE_SECOND) for name in ("fast", "reference"))
    assert any(step["hits"] for step in naive.steps if step["resumed"])
    assert facts(fast) == facts(naive)


@pytest.mark.parametrize("caching", [True, False])
def test_who_waits_for_blocks_that_windows_leave_does_not_end_leaps(caching: bool) -> None:
    """B needs 50 blocks and gets them when A has ended, whose window gives some back all the while."""
    asks = [Ask("A", 100, 300), Ask("B", 100, 2, at=250)]
    config = make_config(
        num_gpu_blocks=137, kv_groups=SLIDING, enable_prefix_caching=caching, max_num_batched_tokens=128
    )
    fast, naive = (replay(ENGINES[name], make_trace(asks), config, ONE_SECOND) for name in ("fast", "reference"))
    assert fast.records.requests.first_scheduled_s[1] == 300
    assert len(fast.records.leaps) < 100
    assert facts(fast) == facts(naive)


def test_progress_is_told_once_a_request() -> None:
    """C arrives before the preemption, D after it."""
    asks = [Ask("A", 30, 40), Ask("B", 30, 40), Ask("C", 1, 1, at=1), Ask("D", 1, 1, at=70)]
    config = make_config(num_gpu_blocks=40, kv_groups=SLIDING, enable_prefix_caching=True, max_model_len=100)
    told: list[tuple[int, int]] = []
    simulate_cluster(make_trace(asks), FleetPlan.alike(config, ONE_SECOND), on_progress=lambda *done: told.append(done))
    assert told == [(done, 4) for done in range(5)]
