"""`simulate --stream`: the figures of the whole run, each within what the summary says of it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import count
from typing import Any

import numpy as np
import pytest

import sim
from sim.errors import ConfigError
from sim.report.intervals import SKETCHED
from sim.workload.lengths import Uniform
from tests.test_api import TEN_MS, make_trace

ROUNDING = 1e-12
SUMMED = 1e-9
"""Deviations are of sums that are put together from those of parts."""
OTHERWISE = {"wall_time_s", "arguments", "trace_sha256", "confidence", "limits", "streamed"}
LOADS: dict[str, dict[str, Any]] = {
    "busy": {"rate_scale": 8.0, "slo": ["ttft_p99=500ms", "tpot_p90=12ms"]},
    "few blocks": {
        "rate_scale": 30.0,
        "slo": ["e2el_p50=1s"],
        "engine": sim.EngineConfig(max_model_len=4096, num_gpu_blocks_override=600, enable_prefix_caching=False),
    },
    "replicas": {"rate_scale": 20.0, "replicas": 3, "router": "least_loaded"},
    "several answers": {"rate_scale": 8.0, "slo": ["ttft_p99=500ms"], "replicas": 2, "router": "round_robin"},
}


SEVERAL = "several answers"


@cache
def both(load: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The summaries of the run as a whole and in parts of 40 requests."""
    trace = sim.read_trace("chat", limit=200)
    if load == SEVERAL:
        trace = replace(trace, n=np.resize([1, 3, 1, 2, 1], len(trace)))
    whole = sim.simulate("Llama-3.1-8B", "h100-sxm", trace, intervals=False, **LOADS[load])
    parts = (trace.part(first, first + 40) for first in range(0, len(trace), 40))
    return whole.summary, sim.simulate("Llama-3.1-8B", "h100-sxm", parts, **LOADS[load]).summary


@pytest.mark.parametrize("load", LOADS)
def test_figures_are_those_of_the_whole_run(load: str) -> None:
    """Counts and largest values to the last digit, sums and means but for rounding, percentiles within the stated error."""
    whole, streamed = both(load)
    assert whole.keys() - streamed.keys() <= OTHERWISE
    error = streamed["streamed"]["percentile_error"]
    for name, value in whole.items():
        if name in OTHERWISE or not isinstance(value, float):
            continue
        within = error * (1 + SUMMED) if SKETCHED.fullmatch(name) or name.endswith("_arrival_s") else ROUNDING
        within = SUMMED if name.startswith("std") else within
        assert streamed[name] == pytest.approx(value, rel=within), name
    exact = [
        name for name, value in whole.items() if not isinstance(value, float | dict | list) and name not in OTHERWISE
    ]
    assert {name: streamed[name] for name in exact} == {name: whole[name] for name in exact}
    assert streamed["max_kv_cache_usage"] == whole["max_kv_cache_usage"]


def test_replicas_are_those_of_the_whole_run() -> None:
    whole, streamed = both("replicas")
    for one, other in zip(streamed["replicas"], whole["replicas"], strict=True):
        assert one == pytest.approx(other, rel=ROUNDING)


@pytest.mark.parametrize("load", LOADS)
def test_limits_are_those_of_the_whole_run(load: str) -> None:
    """Resources by other steps, of which there are at least 200; waits and graphs by all."""
    whole, streamed = (summary["limits"] for summary in both(load))
    assert streamed["queued"] == pytest.approx(whole["queued"], rel=ROUNDING)
    assert streamed["steps"] == whole["steps"]
    assert streamed["busy"] == pytest.approx(whole["busy"], abs=0.05)
    assert [cliff["num_steps"] for cliff in streamed["graph_cliffs"]] == [
        cliff["num_steps"] for cliff in whole["graph_cliffs"]
    ]
    if whole["overload"]:
        assert streamed["overload"]["num_not_begun"] == whole["overload"]["num_not_begun"]
        assert streamed["overload"]["served_rate"] == pytest.approx(whole["overload"]["served_rate"])
    assert bool(streamed["overload"]) == bool(whole["overload"])
    share = whole["p99_ttft_queue_share"]
    assert streamed["p99_ttft_queue_share"] == pytest.approx(share, abs=0.1)  # of three or four requests, or one more


def test_what_happens_over_time_adds_up() -> None:
    _, streamed = both("busy")
    windows = streamed["streamed"]["over_time"]
    assert sum(window["arrived"] for window in windows) == streamed["arrived"]
    assert sum(window["completed"] for window in windows) == streamed["completed"]
    assert sum(window["output_tokens"] for window in windows) == streamed["total_output_tokens"]


def test_memory_does_not_grow_with_the_trace() -> None:
    """What has been sent is gone: eight parts later less than one part's columns and names more are held."""
    import gc
    import tracemalloc

    held_bytes, part_bytes = [], []

    def told() -> Iterator[sim.Trace]:
        for number in count():
            gc.collect()
            held_bytes.append(tracemalloc.get_traced_memory()[0])
            trace = make_trace(250, gap_s=0.05)
            part = sim.Trace(
                trace.request_id, trace.arrival_s + 12.5 * number, trace.prompt_tokens, trace.output_tokens
            )
            del trace
            part_bytes.append(tracemalloc.get_traced_memory()[0] - held_bytes[-1])
            yield part

    tracemalloc.start()
    try:
        sim.simulate("Llama-3.1-8B", "h100-sxm", told(), limit=3_000, step_time_model=TEN_MS)
    finally:
        tracemalloc.stop()
    assert held_bytes[11] - held_bytes[3] < min(part_bytes)


def test_rejections_are_counted_and_some_have_their_reasons() -> None:
    """By row of the whole stream."""
    spec = sim.WorkloadSpec(num_requests=300, prompt_tokens=Uniform(1, 200), output_tokens=Uniform(1, 2))
    given: dict[str, Any] = {"engine": sim.EngineConfig(max_model_len=100), "step_time_model": TEN_MS}
    whole = sim.simulate("Llama-3.1-8B", "h100-sxm", spec, intervals=False, **given)
    streamed = sim.simulate("Llama-3.1-8B", "h100-sxm", spec, stream=True, **given)
    assert streamed.summary["rejected"] == whole.summary["rejected"] > 100
    assert dict(streamed.rejected) == dict(list(whole.rejected.items())[:100])


def test_a_stream_has_no_frames() -> None:
    result = sim.simulate("Llama-3.1-8B", "h100-sxm", iter([make_trace()]), step_time_model=TEN_MS)
    assert result.summary["completed"] == 3
    assert re.search(r"Mean TTFT \(ms\): +[\d.]+\nMedian TTFT \(ms\): +[\d.]+ +\+-0.1 %\n", str(result))
    for look in (lambda: result.requests, lambda: result.trace):
        with pytest.raises(ConfigError, match="without `stream`"):
            look()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"users": 3}, "`users` is given, which a stream cannot have"),
        ({"request_rate": 3.0}, "`request_rate` is given"),
        ({"jobs": 2}, "`jobs` is given"),
        (
            {"engine": sim.EngineConfig(pipeline_parallel_size=2)},
            "`stream` replays in one pass, but speculation, pipeline stages",
        ),
        (
            {"replicas": 2, "router": "llm_d"},
            "this router knows requests by the sessions or prompts of the whole trace",
        ),
    ],
)
def test_what_cannot_be_streamed_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        sim.simulate("Llama-3.1-8B", "h100-sxm", make_trace(), stream=True, **given)
