import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import sim
from sim.errors import ConfigError, DoesNotFitError
from sim.search import objective
from sim.specs.hardware import load_gpu
from sim.specs.models import load_model
from sim.steptime.linear import LinearStepTime
from sim.workload.load import trace_sha256
from sim.workload.trace import Trace

TEN_MS = LinearStepTime(base_s=0.01, per_token_s=0.0, per_context_token_s=0.0)


def make_trace(num_requests: int = 3, *, gap_s: float = 1.0) -> Trace:
    """Requests of 100 prompt and 10 output tokens, `gap_s` apart."""
    return Trace(
        request_id=tuple(f"r{i}" for i in range(num_requests)),
        arrival_s=np.arange(num_requests, dtype=np.float64) * gap_s,
        prompt_tokens=np.full(num_requests, 100),
        output_tokens=np.full(num_requests, 10),
        source="made here",
    )


def test_the_public_names_are_those_of_the_documentation() -> None:
    """And each can be had; anything else is an AttributeError."""
    assert dir(sim) == sorted([*sim.__all__, "__version__"])
    assert all(getattr(sim, name) is not None for name in sim.__all__)
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        sim.simulat  # noqa: B018 - looking it up is the test


def test_simulate_takes_names_paths_and_specs_alike(tmp_path: Path) -> None:
    """A trace file and a Trace, a model by name and as ModelSpec: one and the same result."""
    path = tmp_path / "trace.csv"
    path.write_text(
        "request_id,arrival_s,prompt_tokens,output_tokens\n" + "".join(f"r{i},{i},100,10\n" for i in range(3))
    )
    by_name = sim.simulate("Llama-3.1-8B", "h100-sxm", path)
    by_spec = sim.simulate(load_model("Llama-3.1-8B"), load_gpu("h100-sxm"), make_trace())
    pd.testing.assert_frame_equal(by_name.requests, by_spec.requests)
    pd.testing.assert_frame_equal(by_name.steps, by_spec.steps)


def test_a_request_rate_sets_when_requests_arrive() -> None:
    """Three at 3 a second come within one; the summary says what was asked for, and null where nothing was."""
    result = sim.simulate("Llama-3.1-8B", "h100-sxm", make_trace(), step_time_model=TEN_MS, request_rate=3)
    assert result.requests["arrival_s"].tolist() == [0, 0.5, 1]
    assert result.summary["request_rate"] == 3
    at_once = sim.simulate("Llama-3.1-8B", "h100-sxm", make_trace(), step_time_model=TEN_MS, request_rate=float("inf"))
    assert at_once.summary["request_rate"] == "inf"
    assert at_once.summary["duration"] == pytest.approx(0.1)
    as_it_is = sim.simulate("Llama-3.1-8B", "h100-sxm", make_trace(), step_time_model=TEN_MS)
    assert as_it_is.summary["request_rate"] is None


def test_a_result_has_summary_requests_and_steps() -> None:
    """Three lone requests of ten 10 ms steps each: 30 steps, 100 ms from end to end."""
    result = sim.simulate("Llama-3.1-8B", "h100-sxm", make_trace(), step_time_model=TEN_MS)
    assert result.summary["completed"] == 3
    assert result.requests["e2el_ms"].tolist() == pytest.approx([100, 100, 100])
    assert len(result.steps) == result.summary["num_steps"] == 30
    assert result.summary["step_time"] == {"model": "LinearStepTime"}
    assert result.steps["cudagraph"].tolist()[:2] == ["piecewise", "full"]
    assert "Serving Benchmark Result" in str(result)


def test_a_result_can_be_written(tmp_path: Path) -> None:
    """As --out does it."""
    result = sim.simulate("Llama-3.1-8B", "h100-sxm", make_trace(), step_time_model=TEN_MS)
    result.write(tmp_path / "out")
    assert json.loads((tmp_path / "out/summary.json").read_text()) == result.summary


def test_a_summary_says_what_was_run() -> None:
    """The arguments that were given, under vLLM's names, and the load; they stand first and in the same order always."""
    engine = sim.EngineConfig(max_num_seqs=8, cudagraph_capture_sizes=(1, 8))
    summary = sim.simulate("Llama-3.1-8B", "h100-sxm", make_trace(), engine=engine, rate_scale=2.0, limit=2).summary
    assert summary["engine"] == {"max_num_seqs": 8, "cudagraph_capture_sizes": [1, 8]}
    assert summary["trace_sha256"] == trace_sha256(make_trace(2, gap_s=0.5))
    assert (summary["request_rate"], summary["rate_scale"], summary["limit"]) == (None, 2.0, 2)
    assert summary["trace_request_rate"] == 2.0
    assert summary["step_time"]["model"] == "roofline"
    assert list(summary)[:12] == [
        *("model_id", "gpu", "tensor_parallel_size", "engine", "trace", "trace_sha256", "trace_request_rate"),
        *("request_rate", "rate_scale", "limit", "vllm_version", "servecast_version"),
    ]


def test_limit_and_rate_scale_apply_to_a_trace_object_too() -> None:
    """Two of three requests at four times the rate."""
    options = {"limit": 2, "rate_scale": 4.0}
    result = sim.simulate("Llama-3.1-8B", "h100-sxm", make_trace(), step_time_model=TEN_MS, **options)  # type: ignore[arg-type]
    assert result.requests["arrival_s"].tolist() == [0, 0.25]
    with pytest.raises(ConfigError, match="at least 1 request"):
        sim.simulate("Llama-3.1-8B", "h100-sxm", make_trace(), limit=0)


def test_a_model_that_does_not_fit_raises_with_the_reason_of_the_plan() -> None:
    """Llama-3.1-70B in bf16 is 131 GiB; one H100 has 79."""
    plan = sim.plan_memory("Llama-3.1-70B", "h100-sxm")
    assert plan.reason is not None
    with pytest.raises(DoesNotFitError) as raised:
        sim.simulate("Llama-3.1-70B", "h100-sxm", make_trace())
    assert plan.reason in str(raised.value)
    assert "1 x h100-sxm" in str(raised.value)


def test_given_step_times_and_blocks_need_no_memory_at_all() -> None:
    """Whoever brings both simulates a scheduler, not a machine."""
    engine = sim.EngineConfig(num_gpu_blocks_override=50, max_num_seqs=8)
    result = sim.simulate("Llama-3.1-70B", "l4", make_trace(), engine=engine, step_time_model=TEN_MS)
    assert (result.summary["completed"], result.summary["num_gpu_blocks"]) == (3, 50)


def test_progress_ends_with_all_requests_done() -> None:
    """The callback sees how many of how many."""
    seen: list[tuple[int, int]] = []
    sim.simulate("Llama-3.1-8B", "h100-sxm", make_trace(), progress=lambda *done: seen.append(done))
    assert seen[-1] == (3, 3)
    assert seen == sorted(seen)


def test_the_context_that_fits_is_the_one_simulated() -> None:
    """max_model_len="auto" on a GPU too small for 131,072 tokens: the plan's length reaches the engine."""
    engine = sim.EngineConfig(max_model_len="auto")
    result = sim.simulate("Llama-3.1-8B", "l4", make_trace(), engine=engine)
    planned = result.deployment.plan.max_model_len
    assert 0 < planned < 131_072
    assert result.deployment.engine.max_model_len == planned


def served(rate_rps: float = 13.0, prompt_tokens: int = 550) -> Trace:
    """As the measured servers were asked: a few prompts again and again, so that nearly all of each is cached."""
    count, prompts = 400, 10
    return Trace(
        request_id=tuple(map(str, range(count))),
        arrival_s=np.cumsum(np.random.default_rng(0).exponential(1 / rate_rps, count)),
        prompt_tokens=np.full(count, prompt_tokens),
        output_tokens=np.full(count, 248),
        segments=[((index % prompts, prompt_tokens),) for index in range(count)],
    )


def confidence_of(trace: Trace, gpu: str | sim.HardwareProfile = "h100-sxm", **options: Any) -> dict[str, Any]:
    engine = sim.EngineConfig(**{"max_model_len": 4096, "max_num_seqs": 128} | options.pop("engine", {}))
    options = {"vllm_version": "0.15.1"} | options
    found = sim.simulate("Llama-3.1-8B", gpu, trace, engine=engine, **options)
    confidence: dict[str, Any] = found.summary["confidence"]
    return confidence


@cache
def validated() -> dict[str, Any]:
    return confidence_of(served())


def test_what_was_measured_is_validated() -> None:
    """Llama-3.1-8B with cached prompts on an H100 and vLLM 0.15."""
    confidence = validated()
    assert (confidence["level"], confidence["extrapolates"]) == ("validated", [])
    assert confidence["text"].startswith("validated on ")
    assert confidence["bands_percent"]["tpot"] < 6


H100 = load_gpu("h100-sxm")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gpu": "l4"}, "GPU l4"),
        (
            {"gpu": replace(H100, memory_bandwidth_bytes_per_s=H100.memory_bandwidth_bytes_per_s / 3)},
            "GPU h100-sxm with figures of its own",
        ),
        ({"gpu": replace(H100, derived=("num_sms",))}, "derived, not given: num_sms"),
        ({"engine": {"enforce_eager": True}}, "steps without CUDA graphs"),
        ({"engine": {"kv_cache_dtype": "fp8"}}, "a KV cache in fp8"),
        ({"engine": {"enable_prefix_caching": False}}, "prompts that are not cached"),
        ({"trace": served(prompt_tokens=100_000), "engine": {"max_model_len": 131_072}}, "prompts of 100,000 tokens"),
        ({"trace": served(130.0), "engine": {"max_num_seqs": 512}}, "batches of "),
        ({"vllm_version": "0.99"}, "never measured: vLLM 0.99"),
        ({"composition": "two_pass"}, "mixed steps timed as two_pass"),
    ],
)
def test_outside_of_what_was_measured_the_band_widens_and_says_why(changes: dict[str, Any], reason: str) -> None:
    """Each by itself; everything else is as it was measured."""
    within, outside = validated(), confidence_of(**{"trace": served()} | changes)
    assert outside["level"] == "extrapolated"
    assert reason in outside["text"]
    assert all(wide > within["bands_percent"][name] for name, wide in outside["bands_percent"].items())


def test_every_figure_has_an_interval_with_the_point_inside() -> None:
    """All that a replay gives, P99s and throughput among them."""
    summary = sim.simulate("Llama-3.1-8B", "h100-sxm", served()).summary
    intervals = summary["confidence"]["intervals"]
    assert {
        "p99_ttft_ms",
        "p99_e2el_ms",
        "std_itl_ms",
        "output_throughput",
        "num_steps",
        "duration",
    } <= intervals.keys()
    assert all(low <= summary[name] <= high for name, (low, high) in intervals.items())
    assert all(intervals[name][0] < intervals[name][1] for name in ("p99_ttft_ms", "p99_e2el_ms", "output_throughput"))


def test_without_intervals_nothing_is_replayed_again() -> None:
    """The summary is as with them, but for them."""
    with_them, without = (sim.simulate("Llama-3.1-8B", "h100-sxm", served(), intervals=way) for way in (True, False))
    for result in (with_them, without):
        del result.summary["wall_time_s"], result.summary["arguments"]
    assert with_them.summary["confidence"].pop("intervals")
    assert with_them.summary == without.summary


def test_records_that_are_not_kept_leave_the_same_summary() -> None:
    """What needs them says so; why requests were rejected is known all the same."""
    trace = pd.DataFrame({"arrival_s": [0.0, 1.0], "prompt_tokens": [10, 10_000_000], "output_tokens": [5, 5]})
    kept, forgotten = (sim.simulate("Llama-3.1-8B", "h100-sxm", trace, keep_records=way) for way in (True, False))
    for result in (kept, forgotten):
        del result.summary["wall_time_s"], result.summary["arguments"]
    assert forgotten.summary == kept.summary
    assert forgotten.rejected == kept.records.requests.rejected != {}
    with pytest.raises(ConfigError, match="keep_records"):
        _ = forgotten.requests


def test_at_its_limit_a_deployment_says_so_and_at_what_rate_it_would_not_be() -> None:
    """Just below what 32 sequences take; far below it the P99 is what it is."""
    engine = {"max_num_seqs": 32}
    confidence = confidence_of(served(13.0), engine=engine)
    limit = confidence["at_limit"]
    assert limit["metric"] == "p99_ttft_ms"
    assert limit["request_rate"] == pytest.approx(11.5, rel=0.01)
    assert 8 < limit["steady_request_rate"] < limit["request_rate"]
    assert "runs at its limit" in limit["text"]
    assert "at_limit" not in confidence_of(served(8.0), engine=engine)


def test_what_requests_ask_and_where_tokens_go_is_an_input() -> None:
    """Greedy requests spare Llama's top-p; evenly spread tokens wake more of Mixtral's experts than popular ones do."""

    def tpot_ms(model: str, **traffic: Any) -> float:
        engine, trace = sim.EngineConfig(tensor_parallel_size=2), make_trace(6, gap_s=0.001)
        return float(sim.simulate(model, "h100-sxm", trace, engine=engine, **traffic).summary["mean_tpot_ms"])

    assert tpot_ms("Llama-3.1-8B", sampling="greedy") < tpot_ms("Llama-3.1-8B")
    skewed, uniform, balanced = (
        tpot_ms("Mixtral-8x7B-v0.1", expert_routing=name) for name in ("skewed", "uniform", "balanced")
    )
    assert skewed < uniform < balanced


def test_mixed_steps_cost_more_when_run_as_two_passes() -> None:
    """Prompts arriving into decodes: `two_pass` takes longer than `additive`, which takes longer than `max`."""
    trace = make_trace(40, gap_s=0.004)
    last_s = {
        composition: sim.simulate("Llama-3.1-8B", "h100-sxm", trace, composition=composition).summary["duration"]
        for composition in ("additive", "two_pass", "max")
    }
    assert last_s["two_pass"] > last_s["additive"]
    assert last_s["two_pass"] > last_s["max"]


def test_more_blocks_than_memory_has_are_a_what_if() -> None:
    """An override beyond the GPU's memory is simulated as asked; one too small for a single request is refused."""
    ample = sim.EngineConfig(num_gpu_blocks_override=10_000_000)
    result = sim.simulate("Llama-3.1-8B", "h100-sxm", "chat", engine=ample, limit=20)
    assert not result.deployment.plan.feasible
    assert (result.summary["completed"], result.summary["num_gpu_blocks"]) == (20, 10_000_000)
    with pytest.raises(DoesNotFitError, match="does not start"):
        sim.simulate("Llama-3.1-8B", "h100-sxm", "chat", engine=sim.EngineConfig(num_gpu_blocks_override=10), limit=20)


def test_a_seed_is_stamped_on_the_result_and_changes_nothing_else() -> None:
    """A replay draws nothing at random."""
    first, second = (
        sim.simulate("Llama-3.1-8B", "h100-sxm", "chat", limit=20, seed=seed).summary
        | {"wall_time_s": 0.0, "arguments": None}
        for seed in (0, 7)
    )
    assert (first.pop("seed"), second.pop("seed")) == (0, 7)
    assert first == second


def test_limits_add_goodput_and_change_nothing_else() -> None:
    """Counted by hand from the requests; an optimizer of one's own sees the same figures."""
    slo, trace = ["ttft_p99=40ms", "e2el_p90=1.5s"], sim.read_trace("chat").first(200)
    plain = sim.simulate("Llama-3.1-8B", "h100-sxm", trace, intervals=False).summary
    result = sim.simulate("Llama-3.1-8B", "h100-sxm", trace, slo=slo, intervals=False)
    requests, found = result.requests, result.summary
    good = int(((requests["ttft_ms"] <= 40) & (requests["e2el_ms"] <= 1500)).sum())
    assert 0 < good < 200
    added = {name: found.pop(name) for name in found.keys() - plain.keys()}
    apart = dict.fromkeys(["wall_time_s", "arguments"])
    assert found | apart == plain | apart
    assert added.pop("slo") == {"ttft_p99": 40, "e2el_p90": 1500}
    assert (added["slo_attainment"], added["request_goodput"]) == (good / 200, good / found["duration"])
    tried = objective("Llama-3.1-8B", "h100-sxm", trace, slo=slo)({})
    assert added == {name: tried[name] for name in added}


def test_goodput_has_an_interval() -> None:
    """As every figure has, from the replays with other step times."""
    found = sim.simulate("Llama-3.1-8B", "h100-sxm", "chat", slo=["ttft_p99=40ms"], limit=200).summary
    low, high = found["confidence"]["intervals"]["request_goodput"]
    assert 0 < low <= found["request_goodput"] <= high
