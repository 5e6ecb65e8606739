"""A run under the names of vLLM's own metrics, by numbers worked out by hand, and as Prometheus reads it."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import sim
from sim.metrics.vllm_metrics import Metric, sample_times, vllm_metrics
from tests.cli.conftest import Servecast, servecast
from tests.explanation.conftest import run, timed, trace

__all__ = ["servecast"]

PUBLISHED = {
    "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prompt_tokens_total", "generation_tokens_total",
    "request_success_total", "e2e_request_latency_seconds_bucket", "e2e_request_latency_seconds_sum", "e2e_request_latency_seconds_count",
    "inter_token_latency_seconds_bucket", "inter_token_latency_seconds_sum", "inter_token_latency_seconds_count",
    "time_to_first_token_seconds_bucket", "time_to_first_token_seconds_sum", "time_to_first_token_seconds_count",
    "request_prompt_tokens_bucket", "request_generation_tokens_bucket", "request_queue_time_seconds_sum", "request_prefill_time_seconds_sum",
    "request_decode_time_seconds_sum", "request_max_num_generation_tokens_sum",
}  # fmt: skip
"""What vLLM's own board asks for: examples/observability/prometheus_grafana/grafana.json (@4b5c627c)."""
DASHBOARD = Path(__file__).parents[2] / "dashboards" / "vllm.json"
SAMPLE = re.compile(r'vllm:(\w+)\{model_name="([^"]*)",engine="(\d+)"(?:,(\w+)="([^"]*)")?\} (\S+) (\d+\.\d{3})')


@pytest.fixture(scope="module")
def one_by_one() -> sim.Result:
    """Steps of a second and one seat: A has its tokens at 1, 2 and 3, B, which comes at 0.5, at 4 and 5."""
    requests = trace(("A", 0.0, 8, 3), ("B", 0.5, 16, 2))
    return run(requests, timed(1.0), max_num_seqs=1, max_model_len=100)


@pytest.fixture(scope="module")
def found(one_by_one: sim.Result) -> dict[str, Metric]:
    metrics = vllm_metrics(one_by_one.run, [one_by_one.summary["num_gpu_blocks"]], [100])
    return {metric.name: metric for metric in metrics}


def values(metric: Metric) -> list[float]:
    (series,) = metric.series
    return list(series.values.tolist())


def test_gauges_and_counters_at_each_second(one_by_one: sim.Result, found: dict[str, Metric]) -> None:
    """A step shows from its beginning to its end; what it brings is counted when it has ended."""
    assert sample_times(one_by_one.run).tolist() == [0, 1, 2, 3, 4, 5]
    assert values(found["num_requests_running"]) == [1, 1, 1, 1, 1, 0]
    assert values(found["num_requests_waiting"]) == [0, 1, 1, 0, 0, 0]
    assert values(found["prompt_tokens"]) == [0, 8, 8, 8, 24, 24]
    assert values(found["generation_tokens"]) == [0, 1, 2, 3, 4, 5]
    assert values(found["request_success"]) == [0, 0, 0, 1, 1, 2]
    assert values(found["prefix_cache_queries"]) == [8, 8, 8, 24, 24, 24]
    assert values(found["num_preemptions"]) == [0] * 6


def test_histograms_count_what_is_at_most_each_bound(found: dict[str, Metric]) -> None:
    """TTFTs of 1 s and of 3.5 s; gaps of 1 s, two of A and one of B; steps of one token and whole prompts."""
    ttft = found["time_to_first_token_seconds"]
    (series,) = ttft.series
    assert ttft.bounds[15:18] == (10.0, 20.0, 40.0)
    at_end = dict(zip(ttft.bounds, series.values[-1].tolist(), strict=False))
    assert (at_end[0.75], at_end[1.0], at_end[2.5], at_end[5.0]) == (0, 1, 1, 2)
    assert series.sums is not None
    assert series.sums.tolist() == [0, 1, 1, 1, 4.5, 4.5]
    (gaps,) = found["inter_token_latency_seconds"].series
    assert gaps.values[:, -1].tolist() == [0, 0, 1, 2, 2, 3]
    (steps,) = found["iteration_tokens_total"].series
    assert steps.sums is not None
    assert steps.sums.tolist() == [0, 9, 10, 11, 28, 29]
    assert list(found["request_prompt_tokens"].bounds) == [1, 2, 5, 10, 20, 50, 100]


def test_totals_are_those_of_the_summary() -> None:
    """Of a fleet, engine by engine."""
    result = sim.simulate("Llama-3.1-8B", "h100-sxm", "chat", limit=60, rate_scale=4, replicas=2, intervals=False)
    blocks = [result.summary["num_gpu_blocks"]] * 2
    found = {metric.name: metric for metric in vllm_metrics(result.run, blocks, [131072] * 2)}
    last = {
        name: sum(series.values[-1] for series in metric.series)
        for name, metric in found.items()
        if metric.kind == "counter"
    }
    assert last["generation_tokens"] == result.summary["total_output_tokens"]
    assert last["prompt_tokens"] == result.summary["total_input_tokens"]
    assert last["request_success"] == result.summary["completed"]
    sums = [series.sums[-1] for series in found["e2e_request_latency_seconds"].series if series.sums is not None]
    assert sum(sums) / 60 * 1000 == pytest.approx(result.summary["mean_e2el_ms"])
    counts = [series.values[-1, -1] for series in found["inter_token_latency_seconds"].series]
    assert sum(counts) == result.summary["total_output_tokens"] - 60


def test_the_text_has_times_and_ends(one_by_one: sim.Result, tmp_path: Path) -> None:
    """Samples of a series stand together, in order of time; of a histogram those of one time."""
    one_by_one.write_prometheus(tmp_path / "run.prom", start_s=1000.0)
    text = (tmp_path / "run.prom").read_text()
    assert text.endswith("# EOF\n")
    assert 'vllm:prompt_tokens_total{model_name="meta-llama/Llama-3.1-8B",engine="0"} 24 1004.000\n' in text
    assert 'engine="0",finished_reason="length"} 2 1005.000\n' in text
    assert (
        'vllm:time_to_first_token_seconds_bucket{model_name="meta-llama/Llama-3.1-8B",engine="0",le="+Inf"} 2 1005.000\n'
        in text
    )
    last: dict[tuple[str, str], float] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            sample = SAMPLE.fullmatch(line)
            assert sample, line
            series = (sample[1], sample[5])
            assert float(sample[7]) > last.get(series, 0)
            last[series] = float(sample[7])
    assert set(last.values()) == {1005.0}


def test_the_command_writes_it_with_blocks(tmp_path: Path, servecast: Servecast) -> None:
    """As many evictions in the file as in the summary; and what the dashboard asks for is there."""
    line = (
        "simulate",
        "Llama-3.1-8B",
        "--gpu",
        "h100-sxm",
        "--trace",
        "multi-turn",
        "--limit",
        "60",
        "--rate-scale",
        "8",
    )
    small = ("--num-gpu-blocks-override", "1000", "--max-model-len", "15984", "--no-intervals")
    sampled = ("--kv-cache-metrics", "--kv-cache-metrics-sample", "1", "--prometheus", tmp_path / "run.prom")
    told = json.loads(servecast(*line, *small, *sampled, "--json").out)["kv_cache_metrics"]
    text = (tmp_path / "run.prom").read_text()
    counts = re.findall(r"^vllm:kv_block_lifetime_seconds_count\{.*\} (\d+) ", text, re.MULTILINE)
    assert int(counts[-1]) == told["kv_block_lifetime_seconds"]["count"] > 0
    asked = set(re.findall(r"vllm:(\w+)", DASHBOARD.read_text()))
    written = set(re.findall(r"^vllm:(\w+)", text, re.MULTILINE))
    assert asked <= written
    assert written >= PUBLISHED
    assert "idle before eviction" in servecast(*line, *small, *sampled[:3]).out
    assert "--kv-cache-metrics needs the requests" in servecast(*line, "--stream", "--kv-cache-metrics").err


def test_samples_are_at_most_a_thousand() -> None:
    """At round seconds: 2,200 s are sampled every 5."""
    requests = trace(("A", 0.0, 8, 2), ("B", 2198.0, 8, 2))
    times_s = sample_times(run(requests, timed(1.0)).run)
    assert np.unique(np.diff(times_s)).tolist() == [5.0]
    assert len(times_s) == 441
