"""A request that is not served breaks every limit, and no answer passes it over."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import sim
from sim.errors import ConfigError, TraceError
from sim.metrics.slo import is_over, judged_ms, measured_ms
from sim.report.search import capacity_text, optimization_text
from sim.search import objective
from sim.search.evaluate import Task
from sim.search.objectives import unservable
from sim.search.ranking import is_near
from sim.specs.engine import EngineConfig
from sim.specs.slo import parse_slo
from sim.workload.trace import Trace
from tests.metrics.makers import Life, make_records
from tests.search.makers import STEPS, gpu, make_scenario, make_trace, model

TOO_LONG = 200_000
DONE = Life(first_token_s=0.1, finish_s=0.5, output_tokens=5)
REJECTED = Life(prompt_tokens=TOO_LONG, rejected="too long")


def trace_with_long(rows: slice, num_requests: int = 50) -> Trace:
    """Short requests; those of `rows` are longer than any context."""
    trace = make_trace(num_requests)
    prompts = trace.prompt_tokens.copy()
    prompts[rows] = TOO_LONG
    return replace(trace, prompt_tokens=prompts)


HALF = slice(1, None, 2)
ENGINE = EngineConfig(max_model_len=2048)


def optimized(trace: Trace, **changes: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"objective": "latency", "space": {"max_num_seqs": [2, 32]}, "slo": ["ttft_p99=5s"]}
    return sim.optimize(model(), gpu(), trace, engine=ENGINE, step_time_model=STEPS, **(facts | changes)).summary


def sized(trace: Trace, **changes: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"slo": ["ttft_p99=500ms"]}
    return sim.capacity(model(), gpu(), trace, engine=ENGINE, step_time_model=STEPS, **(facts | changes)).summary


@pytest.mark.parametrize("latency", ["ttft", "tpot", "itl", "e2el"])
def test_a_rejected_request_is_infinitely_late(latency: str) -> None:
    """One of three is the P99 and not the median; the percentile of those served is as it was."""
    records = make_records(DONE, DONE, REJECTED, itl_s={0.1: 8})
    high, low = parse_slo(f"{latency}_p99=1s"), parse_slo(f"{latency}_p50=1s")
    assert judged_ms(high, records) is None
    assert judged_ms(low, records) == measured_ms(low, records) is not None
    assert measured_ms(high, records) is not None


def test_what_was_not_served_exceeds_every_limit() -> None:
    """However high; a served request of one token has no time between tokens to exceed."""
    requests = make_records(DONE, REJECTED, Life(first_token_s=0.1, finish_s=0.1)).requests
    for latency in ("ttft", "tpot", "e2el"):
        assert is_over(parse_slo(f"{latency}_p99=1000000s"), requests).tolist() == [False, True, False]


def test_a_percentile_breaks_where_it_is_read_off_at_a_rejected_request() -> None:
    """As numpy's percentile of latencies among which rejected ones are infinite."""
    for percentile, count in ((99, 1), (99, 2), (98, 1), (50, 25), (49, 25), (100, 1)):
        slo = parse_slo(f"ttft_p{percentile}=1s")
        found = unservable(trace_with_long(slice(50 - count, None)), model(), [slo])
        assert found is not None
        with np.errstate(invalid="ignore"):
            is_finite = np.isfinite(np.percentile([0.1] * (50 - count) + [np.inf] * count, percentile))
        assert found.broken == (() if is_finite else (slo,))


def test_half_the_requests_rejected_is_no_capacity() -> None:
    """The answer says so first, in words, in JSON and in each row of the curve; there are no replicas that would do."""
    found = sized(trace_with_long(HALF))
    assert found["max_request_rate"] is None
    assert found["unservable"]["num_requests"] == 25
    assert found["unservable"]["broken"] == ["ttft_p99"]
    assert all(row["ttft_p99"] is None and 2 * row["rejected"] == row["arrived"] for row in found["curve"])
    assert not any(row["keeps_limits"] for row in found["curve"])
    text = capacity_text(found)
    assert text.startswith("25 of 50 requests are rejected by every configuration: prompts of up to 200,000 tokens")
    assert "at no rate" in text
    assert "inf" in text
    with pytest.raises(ConfigError, match=r"no number of replicas .* 25 of 50 requests"):
        sized(trace_with_long(HALF), rate=5.0)


def test_a_few_rejected_requests_are_said_and_break_no_percentile_that_holds() -> None:
    """One of 300 is less than the hundredth that a P99 leaves; the rate counts it, requests at a time do not."""
    found = sized(trace_with_long(slice(7, 8), 300))
    assert found["max_request_rate"] > 1
    assert found["unservable"]["broken"] == []
    assert capacity_text(found).startswith("1 of 300 requests is rejected")
    served = found["metrics"]["completed"] / found["metrics"]["arrived"]
    by_littles_law = found["max_request_rate"] * served * found["metrics"]["mean_e2el_ms"] / 1e3
    assert found["concurrent_requests"] == pytest.approx(by_littles_law)
    assert found["metrics"]["slo_ttft_p99_ms"] >= found["metrics"]["p99_ttft_ms"]


def test_no_candidate_keeps_a_limit_that_rejected_requests_break() -> None:
    """The nearest is still the best for the rest, and raising the limit is not advised."""
    found = optimized(trace_with_long(HALF))
    assert found["feasible"] is False
    assert found["relax"] == []
    assert all(row["slo_violation"] > 0 for row in found["candidates"])
    assert found["best"]["slo_robustness"] == 0
    assert optimization_text(found).startswith("25 of 50 requests are rejected")
    alone = optimized(make_trace(50), slo=[])
    assert found["best"]["engine"] == alone["best"]["engine"]


def test_candidates_are_told_apart_though_all_reject_the_same() -> None:
    """By the goal while those served are in time."""
    scenario = make_scenario(trace_with_long(HALF), slo=("ttft_p99=100s",))
    fast, slow = (scenario.try_out(Task({"max_num_seqs": seqs})).metrics for seqs in (32, 1))
    assert scenario.target.violation(fast) == scenario.target.violation(slow) == 0.5
    assert is_near(scenario.target, fast, fast)
    assert not is_near(scenario.target, fast, slow)


def test_goodput_counts_rejected_requests_as_missed() -> None:
    """The others are all good."""
    scenario = make_scenario(trace_with_long(HALF), objective="goodput", slo=("ttft_p99=100s",))
    metrics = scenario.try_out(Task({})).metrics
    assert metrics["slo_attainment"] == 0.5
    assert metrics["request_goodput"] == pytest.approx(25 / metrics["duration"])


@pytest.mark.parametrize("ask", [optimized, sized, lambda trace: objective(model(), gpu(), trace)])
def test_a_trace_of_which_nothing_can_be_served_is_refused(ask: Any) -> None:
    with pytest.raises(
        TraceError, match="none of its 50 requests can be served: the shortest prompt has 200,000 tokens"
    ):
        ask(trace_with_long(slice(None)))


def test_a_context_need_not_hold_what_no_context_holds() -> None:
    """Without engine arguments the longest request that counts is one that the model takes."""
    scenario = make_scenario(trace_with_long(HALF))
    taken = make_trace(50)
    assert scenario.longest_request == int((taken.prompt_tokens + taken.output_tokens)[::2].max())


def test_a_candidate_whose_engine_would_crash_cannot_serve() -> None:
    """vLLM 0.11 cannot queue equals under priority; the search says so of that candidate and goes on."""
    trace = replace(make_trace(), arrival_s=np.zeros(60))
    scenario = make_scenario(trace, vllm_version="0.11.0")
    by_priority, by_arrival = (scenario.try_out(Task({"scheduling_policy": p})) for p in ("priority", "fcfs"))
    assert by_arrival.is_feasible
    assert by_priority.reason is not None
    assert by_priority.reason.startswith("the engine of vLLM before 0.12.0 crashes in this run")
