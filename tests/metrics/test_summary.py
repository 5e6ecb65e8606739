import json

import pytest

from sim.metrics.summary import summarize
from tests.metrics.makers import DISPATCH, Life, Step, make_records

THREE = make_records(
    Life(arrival_s=100.0, first_token_s=100.2, finish_s=101.0, prompt_tokens=30, output_tokens=5),
    Life(arrival_s=100.5, first_token_s=100.9, finish_s=102.9, prompt_tokens=50, output_tokens=11),
    Life(arrival_s=101.0, first_token_s=101.6, finish_s=101.6, prompt_tokens=20, output_tokens=1),
    itl_s={0.2: 14},
)


def test_totals_and_throughputs_count_from_first_arrival_to_last_completion() -> None:
    """100 prompt and 17 output tokens in the 2.9 s between t=100.0 and t=102.9."""
    summary = summarize(THREE, num_gpu_blocks=11, dispatch=DISPATCH)
    assert summary["duration"] == pytest.approx(2.9)
    assert (summary["total_input_tokens"], summary["total_output_tokens"]) == (100, 17)
    assert summary["request_throughput"] == pytest.approx(3 / 2.9)
    assert summary["output_throughput"] == pytest.approx(17 / 2.9)
    assert summary["total_token_throughput"] == pytest.approx(117 / 2.9)


def test_arrivals_count_from_the_first() -> None:
    """Of 200 requests, half a second apart, in any order: the second is the first hundredth, the tenth the first twentieth."""
    lives = [Life(arrival_s=100 + 0.5 * number) for number in range(200)]
    summary = summarize(make_records(*lives[::-1]), num_gpu_blocks=11, dispatch=DISPATCH)
    assert (summary["p1_arrival_s"], summary["p5_arrival_s"]) == (0.5, 4.5)


def test_ttft_and_e2el_count_from_arrival() -> None:
    """TTFT 200, 400 and 600 ms; end to end 1,000, 2,400 and 600 ms."""
    summary = summarize(THREE, num_gpu_blocks=11, dispatch=DISPATCH)
    assert summary["mean_ttft_ms"] == pytest.approx(400)
    assert summary["p90_ttft_ms"] == pytest.approx(560)
    assert summary["median_e2el_ms"] == pytest.approx(1000)
    assert summary["mean_e2el_ms"] == pytest.approx(4000 / 3)


def test_a_request_of_one_token_has_no_tpot() -> None:
    """(1.0 - 0.2)/4 and (2.4 - 0.4)/10 s a token, both 200 ms; the one-token request does not count as 0."""
    summary = summarize(THREE, num_gpu_blocks=11, dispatch=DISPATCH)
    assert (summary["mean_tpot_ms"], summary["std_tpot_ms"]) == pytest.approx((200, 0), abs=1e-6)


def test_recomputation_after_a_preemption_is_one_large_gap_and_leaves_ttft_alone() -> None:
    """A request preempted while it decodes keeps its first token; the gap shows in ITL p99, not in the median."""
    preempted = Life(first_scheduled_s=0.0, first_token_s=0.1, finish_s=2.1, output_tokens=101, num_preemptions=1)
    summary = summarize(make_records(preempted, itl_s={0.01: 99, 1.01: 1}), num_gpu_blocks=11, dispatch=DISPATCH)
    assert summary["mean_ttft_ms"] == pytest.approx(100)
    assert summary["median_itl_ms"] == pytest.approx(10)
    assert summary["p99_itl_ms"] == pytest.approx(20)
    assert summary["mean_tpot_ms"] == pytest.approx(20)
    assert summary["num_preemptions"] == 1


def test_every_arrival_is_completed_rejected_failed_or_unfinished() -> None:
    """One of each, and a second rejection: 5 = 1 + 2 + 1 + 1; only the completed one counts in tokens and latencies."""
    summary = summarize(
        make_records(
            Life(first_token_s=0.5, finish_s=1.0, prompt_tokens=7, output_tokens=2),
            Life(rejected="prompt too long"),
            Life(rejected="prompt too long"),
            Life(first_token_s=0.25, failed="nobody waits for it"),
            Life(first_token_s=0.5),
        ),
        num_gpu_blocks=11,
        dispatch=DISPATCH,
    )
    assert summary["arrived"] == 5
    assert [summary[outcome] for outcome in ("completed", "rejected", "failed", "unfinished")] == [1, 2, 1, 1]
    assert (summary["total_input_tokens"], summary["total_output_tokens"]) == (7, 2)
    assert summary["mean_ttft_ms"] == pytest.approx(500)


@pytest.mark.parametrize("lives", [(), (Life(rejected="prompt too long"),)])
def test_a_run_in_which_nothing_completes_is_null_and_valid_json(lives: tuple[Life, ...]) -> None:
    """Neither NaN nor a division by zero: null, and counts of 0."""
    summary = summarize(make_records(*lives), num_gpu_blocks=11, dispatch=DISPATCH)
    assert (summary["completed"], summary["total_output_tokens"]) == (0, 0)
    nulls = ("duration", "request_throughput", "mean_ttft_ms", "p99_itl_ms", "max_kv_cache_usage", "gpu_busy_fraction")
    assert [summary[key] for key in nulls] == [None] * len(nulls)
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


def test_kv_cache_usage_leaves_out_the_null_block() -> None:
    """Of 11 blocks 10 are usable: 8 free after a step is a usage of 0.2, as vLLM's gauge shows it."""
    summary = summarize(
        make_records(Life(), steps=(Step(0, 1, 8), Step(1, 2, 9))), num_gpu_blocks=11, dispatch=DISPATCH
    )
    assert summary["max_kv_cache_usage"] == pytest.approx(0.2)


def test_gpu_busy_fraction_counts_from_first_arrival_to_last_step() -> None:
    """Steps from 1 to 3 s and from 4 to 5 s, the first arrival at 0: busy for 3 s of 5."""
    steps = (Step(1.0, 2.0), Step(2.0, 3.0), Step(4.0, 5.0))
    assert summarize(make_records(Life(), steps=steps), num_gpu_blocks=11, dispatch=DISPATCH)[
        "gpu_busy_fraction"
    ] == pytest.approx(3 / 5)


def test_prefix_cache_hit_rate_is_hits_over_queried_tokens() -> None:
    """32 of 100 tokens; null where nothing was looked up."""
    hit = make_records(Life(), prefix_cache_queries=100, prefix_cache_hits=32)
    assert summarize(hit, num_gpu_blocks=11, dispatch=DISPATCH)["prefix_cache_hit_rate"] == pytest.approx(0.32)
    assert summarize(make_records(Life()), num_gpu_blocks=11, dispatch=DISPATCH)["prefix_cache_hit_rate"] is None
