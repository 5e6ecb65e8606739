"""Who gets how many tokens in a step, where blocks are plenty."""

import numpy as np
import pytest

from sim.specs.rules import SchedulingRules
from tests.engines import Engine
from tests.makers import Ask, run

HOLD_LONE_REQUESTS = SchedulingRules(lone_request_ignores_threshold=False)


def test_the_budget_goes_to_the_running_first_and_then_to_the_queue(engine: Engine) -> None:
    """Statement 1: budget 8; A5, B6 and C4 share it in order of arrival, and C is not looked at once it is spent."""
    done = run(engine, [Ask("A", 5, 3), Ask("B", 6, 3), Ask("C", 4, 3)], max_num_batched_tokens=8, num_gpu_blocks=1000)
    assert done.tokens == [{"A": 5, "B": 3}, {"A": 1, "B": 3, "C": 4}, {"A": 1, "B": 1, "C": 1}, {"B": 1, "C": 1}]
    assert done.column("waiting") == [["C"], [], [], []]
    assert done.column("finished") == [[], [], ["A"], ["B", "C"]]
    assert done.column("free_after") == [996, 994, 995, 999]


def test_a_long_prompt_is_computed_in_chunks_and_only_the_last_yields_a_token(engine: Engine) -> None:
    """Statement 3: budget 4, A10 with two outputs runs 4, 4, 2, 1; its first token comes with the third step."""
    done = run(engine, [Ask("A", 10, 2)], max_num_batched_tokens=4)
    assert done.tokens == [{"A": 4}, {"A": 4}, {"A": 2}, {"A": 1}]
    assert done.column("free_after") == [998, 997, 996, 999]
    assert done.column("sampled") == [[], [], ["A"], ["A"]]
    assert (done.of("A", "first_token_s"), done.of("A", "finish_s")) == (3, 4)


def test_decodes_go_before_a_prefill_that_came_later(engine: Engine) -> None:
    """Statement 4: A decodes one token a step while B20 gets what is left of a budget of 8."""
    done = run(engine, [Ask("A", 4, 6), Ask("B", 20, 2, at=1)], max_num_batched_tokens=8)
    chunks = [{"A": 1, "B": 7}, {"A": 1, "B": 7}, {"A": 1, "B": 6}]
    assert done.tokens == [{"A": 4}, *chunks, {"A": 1, "B": 1}, {"A": 1}]


def test_no_more_run_than_there_are_seats(engine: Engine) -> None:
    """Statement 5: with two seats the third request waits until both are done."""
    done = run(engine, [Ask("A", 4, 2), Ask("B", 4, 2), Ask("C", 4, 2)], max_num_seqs=2)
    assert done.tokens == [{"A": 4, "B": 4}, {"A": 1, "B": 1}, {"C": 4}, {"C": 1}]


@pytest.mark.parametrize(
    ("rules", "last_steps"),
    [(SchedulingRules(), [{"A": 12}]), (HOLD_LONE_REQUESTS, [{"A": 4}, {"A": 4}, {"A": 4}])],
    ids=["new", "old"],
)
def test_the_long_prefill_threshold_is_lifted_once_a_request_is_alone(
    engine: Engine, rules: SchedulingRules, last_steps: list[dict[str, int]]
) -> None:
    """Statement 6: threshold 4 caps A20 and B6 while both are here; whether also a lone A depends on the version."""
    asks = [Ask("A", 20, 1), Ask("B", 6, 1)]
    done = run(engine, asks, max_num_batched_tokens=16, long_prefill_token_threshold=4, rules=rules)
    assert done.tokens == [{"A": 4, "B": 4}, {"A": 4, "B": 2}, *last_steps]


@pytest.mark.parametrize(
    ("rules", "chunks"), [(SchedulingRules(), [16, 4]), (HOLD_LONE_REQUESTS, [4, 4, 4, 4, 4])], ids=["new", "old"]
)
def test_a_request_that_was_always_alone_ignores_the_threshold(
    engine: Engine, rules: SchedulingRules, chunks: list[int]
) -> None:
    """Statement 7: A20 alone under threshold 4 and budget 16 runs 16, 4; older versions run five times 4."""
    done = run(engine, [Ask("A", 20, 1)], max_num_batched_tokens=16, long_prefill_token_threshold=4, rules=rules)
    assert done.tokens == [{"A": chunk} for chunk in chunks]


def test_an_adaptive_threshold_shares_the_budget_among_all_requests(engine: Engine) -> None:
    """Statement 8: threshold 2, adaptive, budget 16, two requests: 16 // 2 = 8 tokens each."""
    done = run(
        engine,
        [Ask("A", 20, 1), Ask("B", 20, 1)],
        max_num_batched_tokens=16,
        long_prefill_token_threshold=2,
        long_prefill_token_threshold_adaptive=True,
    )
    assert done.tokens == [{"A": 8, "B": 8}, {"A": 8, "B": 8}, {"A": 4, "B": 4}]


def test_an_adaptive_threshold_counts_the_waiting_and_never_falls_below_the_one_given(engine: Engine) -> None:
    """Three requests, one of them waiting for a seat: 12 // 3 = 4 tokens each; with a threshold of 5 given, 5."""
    asks = [Ask("A", 9, 1), Ask("B", 9, 1), Ask("C", 9, 1)]
    limits = {"max_num_seqs": 2, "max_num_batched_tokens": 12, "long_prefill_token_threshold_adaptive": True}
    assert run(engine, asks, long_prefill_token_threshold=1, **limits).tokens[0] == {"A": 4, "B": 4}
    assert run(engine, asks, long_prefill_token_threshold=5, **limits).tokens[0] == {"A": 5, "B": 5}


def test_an_adaptive_threshold_of_zero_is_none(engine: Engine) -> None:
    """vLLM adapts only a threshold that is set: both prompts are scheduled whole, not by 12 // 2 tokens."""
    asks = [Ask("A", 9, 1), Ask("B", 3, 1)]
    done = run(engine, asks, max_num_batched_tokens=12, long_prefill_token_threshold_adaptive=True)
    assert done.tokens == [{"A": 9, "B": 3}]


def test_arrivals_can_let_in_the_head_of_the_queue_by_shrinking_an_adaptive_threshold(engine: Engine) -> None:
    """Without the gate H needs 32 of 64 // 2 tokens, 8 blocks of 4 free; with J and K here, 64 // 4 tokens, 4 blocks."""
    asks = [Ask("A", 12, 8), Ask("H", 32, 1, at=1), Ask("J", 4, 1, at=3), Ask("K", 4, 1, at=3)]
    done = run(
        engine,
        asks,
        num_gpu_blocks=9,
        scheduler_reserve_full_isl=False,
        long_prefill_token_threshold=1,
        long_prefill_token_threshold_adaptive=True,
    )
    assert done.tokens[:4] == [{"A": 12}, {"A": 1}, {"A": 1}, {"A": 1, "H": 16}]


def test_without_chunking_a_prompt_larger_than_the_budget_left_stops_admission(engine: Engine) -> None:
    """Statement 9: budget 8, A5 leaves 3 for B6; C2 would fit but is not tried."""
    asks = [Ask("A", 5, 1), Ask("B", 6, 1), Ask("C", 2, 1)]
    done = run(engine, asks, max_num_batched_tokens=8, max_model_len=8, enable_chunked_prefill=False)
    assert done.tokens == [{"A": 5}, {"B": 6, "C": 2}]


def test_a_small_budget_staggers_prompts_behind_decodes(engine: Engine) -> None:
    """Statement 10: budget 4 and five prompts of 4 tokens with three outputs each."""
    done = run(engine, [Ask(name, 4, 3) for name in "ABCDE"], max_num_batched_tokens=4)
    assert done.tokens == [
        {"A": 4},
        {"A": 1, "B": 3},
        {"A": 1, "B": 1, "C": 2},
        {"B": 1, "C": 2, "D": 1},
        {"B": 1, "C": 1, "D": 2},
        {"C": 1, "D": 1, "E": 2},
        {"D": 1, "E": 2},
        {"D": 1, "E": 1},
        {"E": 1},
    ]


def test_smaller_priorities_are_admitted_first(engine: Engine) -> None:
    """Statement 14: A with priority 5, B with 1 and C with 3 run in the order B, C, A."""
    asks = [Ask("A", 4, 1, priority=5), Ask("B", 4, 1, priority=1), Ask("C", 4, 1, priority=3)]
    done = run(engine, asks, max_num_batched_tokens=4, scheduling_policy="priority")
    assert done.tokens == [{"B": 4}, {"C": 4}, {"A": 4}]
    assert done.column("waiting")[0] == ["C", "A"]


def test_equal_priorities_are_served_by_arrival_and_then_by_id_as_text(engine: Engine) -> None:
    """r10 is served before r9, which arrived at the same time, but after r99, which arrived earlier."""
    asks = [Ask("r0", 4, 1), Ask("r99", 4, 1, at=0.25), Ask("r9", 4, 1, at=0.5), Ask("r10", 4, 1, at=0.5)]
    done = run(engine, asks, max_num_batched_tokens=4, scheduling_policy="priority")
    assert done.tokens == [{"r0": 4}, {"r99": 4}, {"r10": 4}, {"r9": 4}]


def test_output_ends_where_the_model_length_ends(engine: Engine) -> None:
    """Statement 26: max_model_len 10 leaves a prompt of 6 tokens exactly 4 outputs of the 100 asked for."""
    done = run(engine, [Ask("A", 6, 100)], max_model_len=10)
    assert done.tokens == [{"A": 6}, {"A": 1}, {"A": 1}, {"A": 1}]
    assert (done.of("A", "output_tokens"), done.of("A", "generated_tokens")) == (4, 4)


def test_cached_blocks_of_finished_requests_count_as_free(engine: Engine) -> None:
    """Statement 27: 8 tokens hold 2 of 10 usable blocks; once they are done all 10 are free, cached or not."""
    done = run(engine, [Ask("A", 8, 1)], num_gpu_blocks=11)
    assert (done.column("free"), done.column("free_after")) == ([8], [10])


def test_active_seqs_bound_the_running_below_max_num_seqs(engine: Engine) -> None:
    """Statement 28: max_num_active_seqs 1 runs A and then B."""
    done = run(engine, [Ask("A", 4, 2), Ask("B", 4, 2)], max_num_active_seqs=1)
    assert done.tokens == [{"A": 4}, {"A": 1}, {"B": 4}, {"B": 1}]


def test_a_smaller_limit_on_scheduled_tokens_is_the_budget(engine: Engine) -> None:
    """max_num_scheduled_tokens 4 cuts a prompt of 10 in three, whatever max_num_batched_tokens says."""
    done = run(engine, [Ask("A", 10, 1)], max_num_batched_tokens=64, max_num_scheduled_tokens=4)
    assert done.tokens == [{"A": 4}, {"A": 4}, {"A": 2}]


def test_what_never_fits_is_rejected_and_stalls_nobody(engine: Engine) -> None:
    """Statement 38: A16 needs 4 of 3 blocks and would block vLLM's queue for ever; here it is rejected and B runs."""
    done = run(engine, [Ask("A", 16, 1), Ask("B", 4, 1)], num_gpu_blocks=4)
    assert done.tokens == [{"B": 4}]
    assert done.records.requests.rejected == {
        0: "16 tokens of prompt and output need more than the 3 KV blocks there are"
    }
    assert np.isnan(done.of("A", "first_scheduled_s"))


def test_what_just_fits_is_served(engine: Engine) -> None:
    """The last token returned needs no KV slot: 9 prompt and 4 output tokens fill 3 blocks of 4, a fifth would not."""
    asks = [Ask("A", 9, 4), Ask("B", 9, 5)]
    assert list(run(engine, asks, num_gpu_blocks=4).records.requests.rejected) == [1]


def test_a_prompt_that_leaves_no_room_for_output_is_rejected(engine: Engine) -> None:
    """With max_model_len 10 a prompt of 9 tokens gets one output, a prompt of 10 is refused, as by vLLM's front end."""
    done = run(engine, [Ask("A", 9, 3), Ask("B", 10, 3)], max_model_len=10)
    assert done.of("A", "generated_tokens") == 1
    assert done.of("B", "rejected") == "a prompt of 10 tokens leaves no room for output within max_model_len 10"
    assert done.column("arrived") == [["A"]]


def test_an_arrival_at_the_instant_of_a_pass_is_seen_by_it(engine: Engine) -> None:
    """B arrives exactly when s2 starts and joins it; C arrives a moment later and joins s3."""
    done = run(engine, [Ask("A", 4, 3), Ask("B", 4, 1, at=1), Ask("C", 4, 1, at=1.001)])
    assert done.tokens == [{"A": 4}, {"A": 1, "B": 4}, {"A": 1, "C": 4}]


def test_an_idle_engine_wakes_at_the_next_arrival(engine: Engine) -> None:
    """A is done at 1; B arrives at 7.5 and starts there."""
    done = run(engine, [Ask("A", 4, 1), Ask("B", 4, 1, at=7.5)])
    assert done.column("start") == [0, 7.5]
    assert done.of("B", "finish_s") == 8.5
