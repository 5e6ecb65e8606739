"""The highest rate within limits, and the replicas that a rate takes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import sim
from sim.errors import ConfigError, DoesNotFitError
from sim.search.capacity import CURVE, knee
from sim.search.evaluate import Task
from sim.search.highest_rate import PRECISION
from sim.search.rate_probe import RateProber
from sim.specs.engine import EngineConfig
from sim.steptime.linear import LinearStepTime
from sim.workload.trace import Trace
from tests.search.makers import gpu, make_scenario, make_trace, model

ENGINE = EngineConfig(max_model_len=2048, max_num_seqs=1)
SERVICE_S = 0.1  # a prompt of one step and nine decodes, 10 ms each
STEPS = LinearStepTime(0.01, 0.0, 0.0)


def steady_trace(num_requests: int = 200) -> Trace:
    """One request a second, each of ten steps."""
    return Trace(
        request_id=tuple(f"r{index}" for index in range(num_requests)),
        arrival_s=make_trace(num_requests).arrival_s[0] + range(num_requests),
        prompt_tokens=make_trace(num_requests).prompt_tokens * 0 + 20,
        output_tokens=make_trace(num_requests).output_tokens * 0 + 10,
    )


def answer(trace: Trace | None = None, **changes: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"slo": ["ttft_p99=50ms"], "engine": ENGINE, "step_time_model": STEPS, "intervals": False}
    return sim.capacity(model(), gpu(), trace or steady_trace(), **(facts | changes)).summary


def test_evenly_spaced_requests_take_the_whole_server() -> None:
    """Served one at a time in 100 ms each, no queue forms up to ten a second, and one does beyond (a D/D/1 queue)."""
    found = answer()
    assert found["max_request_rate"] == pytest.approx(1 / SERVICE_S, rel=PRECISION)
    assert found["max_request_rate"] <= 1 / SERVICE_S * 1.001
    assert found["limited_by"] == "ttft_p99"
    assert found["concurrent_requests"] == pytest.approx(1.0, rel=2 * PRECISION)
    assert [row["request_rate"] for row in found["curve"]] == [share * found["max_request_rate"] for share in CURVE]


def test_cost_follows_from_price_and_throughput() -> None:
    """$ an hour over tokens an hour."""
    found = answer()
    tokens_per_hour = found["metrics"]["output_throughput"] * 3600
    assert found["usd_per_hour"] == gpu().price_usd_per_hour
    assert found["metrics"]["usd_per_million_output_tokens"] == pytest.approx(
        found["usd_per_hour"] / tokens_per_hour * 1e6
    )


def test_a_limit_that_nothing_binds_ends_with_the_backlog() -> None:
    """However loose the limit, a rate that the server cannot keep up with is no capacity."""
    found = answer(slo=["ttft_p99=100000s"])
    assert 1 / SERVICE_S < found["max_request_rate"] < 1.15 / SERVICE_S


def test_clients_that_hold_back_end_with_the_backlog_too() -> None:
    """One in flight is answered after 100 ms whatever the rate, so that no latency tells of more than ten a second."""
    found = answer(max_concurrency=1)
    assert found["max_request_rate"] == pytest.approx(1 / SERVICE_S, rel=0.1)
    assert (found["max_concurrency"], found["open_loop"]) == (1, False)
    assert "--max-concurrency 1 " in found["bench_command"]
    assert found["verify"]["metrics"]["p99_ttft_ms"] == pytest.approx(10.0)


def test_a_limit_below_a_single_step_is_kept_at_no_rate() -> None:
    """The answer is none, with the curve; not an error."""
    found = answer(slo=["ttft_p99=5ms"])
    assert found["max_request_rate"] is None
    assert all(not row["keeps_limits"] for row in found["curve"])


def test_overload_is_seen_before_the_end() -> None:
    """A hopeless rate is given up after a part of the trace, with the verdict of a replay in full."""
    scenario = make_scenario(steady_trace(), slo=("ttft_p99=50ms",), base=ENGINE, step_time=STEPS)
    deployment = RateProber(scenario)
    early, full = deployment.probe(40.0), deployment.measure(40.0)
    assert early.keeps is full.keeps is False
    assert (early.metrics == {}, full.metrics != {}) == (True, True)
    assert deployment.probe(8.0) == deployment.measure(8.0)


def test_replicas_are_simulated_and_not_multiplied() -> None:
    """Bursty traffic through one queue to four servers waits less than through four of their own: fewer are needed."""
    trace = make_trace(400, rate_rps=5.0)
    found = answer(trace, rate=60.0, slo=["ttft_p99=1s"], engine=EngineConfig(max_model_len=2048, max_num_seqs=4))
    sizing = found["sizing"]
    assert sizing["multiplied_replicas"] == -(-60.0 // found["max_request_rate"])
    assert sizing["replicas"] <= sizing["multiplied_replicas"]
    assert sizing["num_gpus"] == sizing["replicas"]
    assert sizing["metrics"]["p99_ttft_ms"] <= 1000
    assert any("behind the router" in sentence for sentence in sizing["multiplication"])


def test_a_cluster_of_one_more_keeps_what_it_says() -> None:
    """The sized cluster keeps the limit in `optimize`'s own scorer; one replica less does not."""
    trace, slo = make_trace(620, rate_rps=10.0, most=200), ("ttft_p99=1s",)
    engine = EngineConfig(max_model_len=2048, max_num_seqs=2)
    deployment = RateProber(make_scenario(trace, slo=slo, base=engine, step_time=STEPS))
    found = answer(trace, rate=deployment.trace_rate, slo=slo, engine=engine)
    replicas = found["sizing"]["replicas"]
    assert replicas > 1
    enough, fewer = (
        deployment.scenario.try_out(Task({"replicas": count})).metrics for count in (replicas, replicas - 1)
    )
    assert enough["p99_ttft_ms"] <= 1000 < fewer["p99_ttft_ms"]


def test_the_knee_is_where_latency_turns_up() -> None:
    """Flat to 8 and steep behind; a straight line has its first point at no distance, a fall has none."""
    assert knee([(2, 10), (4, 10), (6, 11), (8, 12), (10, 100)]) == 8
    assert knee([(1, 5), (2, 5), (3, 5)]) is None
    assert knee([(1, 5), (2, 6)]) is None


def test_bad_questions_are_refused() -> None:
    with pytest.raises(ConfigError, match="give some"):
        answer(slo=[])
    with pytest.raises(ConfigError, match="--rate must be"):
        answer(rate=0.0)
    with pytest.raises(ConfigError, match="are one option"):
        answer(rate=1.0, request_rate=2.0)
    with pytest.raises(ConfigError, match="--replicas must be"):
        answer(replicas=0)
    with pytest.raises(ConfigError, match=r"limits of requests in flight .* at no rate that could be scaled"):
        answer(replace(steady_trace(), max_concurrency=np.full(200, 4)))
    with pytest.raises(ConfigError, match="all come at once"):
        answer(steady_trace(1))
    with pytest.raises(DoesNotFitError, match="too short"):
        answer(engine=EngineConfig(max_model_len=16))
