"""The lines above a table and a plot."""

from typing import Any

import pytest

from sim.report.run_title import run_title, search_title

RUN: dict[str, Any] = {
    "model_id": "meta-llama/Llama-3.1-8B",
    "gpu": "h100-sxm",
    "tensor_parallel_size": 2,
    "engine": {},
    "trace": "chat",
    "trace_sha256": "0123456789abcdef" * 4,
    "trace_request_rate": 4.6129,
    "request_rate": None,
    "rate_scale": 1.0,
    "limit": None,
    "vllm_version": "0.33.0",
    "arrived": 1000,
    "step_time": {"model": "roofline", "composition": "additive", "sampling": "default", "expert_routing": "skewed"},
}
LIMITED = [{"max_concurrency": 8}, {"max_concurrency": 32}]


def title(**changes: Any) -> list[str]:
    return run_title(RUN | changes, 100).splitlines()


def test_a_run_is_told_by_model_gpus_version_trace_load_and_fingerprint() -> None:
    """And nothing is said of arguments where none was given."""
    assert title() == [
        "meta-llama/Llama-3.1-8B on 2 x h100-sxm, vLLM 0.33.0, chat",
        "1,000 requests at 4.613 requests/s (the trace's own), sha256 0123456789ab",
    ]


@pytest.mark.parametrize(
    ("changes", "load"),
    [
        ({"rate_scale": 2.0}, "1,000 requests at 4.613 requests/s (rate_scale=2)"),
        ({"request_rate": 4.6}, "1,000 requests at 4.613 requests/s (request_rate=4.6)"),
        ({"request_rate": "inf", "trace_request_rate": None}, "1,000 requests at once (request_rate=inf)"),
        ({"trace_request_rate": None}, "1,000 requests at once (the trace's own)"),
        ({"limit": 20, "arrived": 20}, "first 20 requests at 4.613 requests/s (the trace's own)"),
        ({"limit": 2000}, "1,000 requests at 4.613 requests/s (the trace's own)"),
        ({"arrived": 1, "trace_request_rate": None}, "1 request"),
        ({"stages": LIMITED}, "1,000 requests, at most 8 to 32 in flight (the trace's own)"),
        ({"stages": LIMITED[:1]}, "1,000 requests, at most 8 in flight (the trace's own)"),
        (
            {"stages": [{"max_concurrency": None}]},
            "1,000 requests at 4.613 requests/s (the trace's own)",
        ),
    ],
)
def test_the_rate_says_where_it_comes_from(changes: dict[str, Any], load: str) -> None:
    """As recorded, scaled or asked for; a lone request has none."""
    assert title(**changes)[1] == f"{load}, sha256 0123456789ab"


def test_arguments_are_those_given_and_long_lists_are_told_by_their_ends() -> None:
    """Under vLLM's names."""
    engine = {"max_num_seqs": 64, "cudagraph_capture_sizes": [1, 2, 4, 8, 16]}
    assert title(engine=engine)[2] == "max_num_seqs=64 cudagraph_capture_sizes=1,2,...,16"


def test_step_times_are_told_where_they_are_not_the_usual_ones() -> None:
    """Another way to run mixed steps, or a file in the roofline's place."""
    greedy = RUN["step_time"] | {"composition": "max", "sampling": "greedy"}
    assert title(engine={"max_num_seqs": 4}, step_time=greedy)[2] == "max_num_seqs=4 step_times=max, greedy"
    assert title(step_time={"model": "linear.yaml"})[2] == "step_times=linear.yaml"


def test_no_line_is_wider_than_asked_and_nothing_is_left_out() -> None:
    """A long path goes on in the next line."""
    lines = title(trace="/a/long/path/to/some/trace/of/a/week/in/spring/and/then/some/more/of/the/same.csv.gz", limit=7)
    assert max(map(len, lines)) <= 100
    assert "same.csv.gz" in " ".join(lines)


def test_a_search_says_what_it_sought_within_which_limits_with_what_given() -> None:
    """A capacity has no objective, and says how many GPUs it is of."""
    search = {**RUN, "num_prompts": 1000, "slo": {"ttft_p99": 500.0}, "engine": {"max_model_len": 4096}}
    assert search_title(search | {"objective": ["cost", "latency"]}, 100).splitlines()[::2] == [
        "meta-llama/Llama-3.1-8B on h100-sxm, vLLM 0.33.0, chat",
        "for cost, latency; within ttft_p99 <= 500 ms; given max_model_len=4096",
    ]
    assert search_title(search | {"num_gpus": 3, "engine": {}}, 100).splitlines()[::2] == [
        "meta-llama/Llama-3.1-8B on 3 x h100-sxm, vLLM 0.33.0, chat",
        "within ttft_p99 <= 500 ms",
    ]
