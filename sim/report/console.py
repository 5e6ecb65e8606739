"""The result table that users of `vllm bench serve` know, with what only the engine's inside can tell below it."""

from collections.abc import Iterator, Mapping
from typing import Any

WIDTH = 50
LABEL_WIDTH = 40

TOTALS = {
    "Successful requests": "completed",
    "Rejected requests": "rejected",
    "Unfinished requests": "unfinished",
    "Benchmark duration (s)": "duration",
    "Total input tokens": "total_input_tokens",
    "Total generated tokens": "total_output_tokens",
    "Request throughput (req/s)": "request_throughput",
    "Output token throughput (tok/s)": "output_throughput",
    "Total token throughput (tok/s)": "total_token_throughput",
}
LATENCIES = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}
FIGURES = {"Mean": "mean", "Median": "median", "P90": "p90", "P95": "p95", "P99": "p99"}
ENGINE = {
    "KV cache blocks": "num_gpu_blocks",
    "Peak KV cache usage (%)": "max_kv_cache_usage",
    "Prefix cache hit rate (%)": "prefix_cache_hit_rate",
    "Preemptions": "num_preemptions",
    "Engine steps": "num_steps",
    "Steps in a CUDA graph (%)": "cudagraph_step_fraction",
    "GPU busy (%)": "gpu_busy_fraction",
}


def result_table(summary: Mapping[str, Any]) -> str:
    """The whole summary as text of fixed width; `-` where there was nothing to measure."""
    return "\n".join(_lines(summary))


def _lines(summary: Mapping[str, Any]) -> Iterator[str]:
    yield " Serving Benchmark Result ".center(WIDTH, "=")
    yield from _section(TOTALS, summary)
    for name, title in LATENCIES.items():
        yield title.center(WIDTH, "-")
        labels = {f"{figure} {name.upper()} (ms)": f"{key}_{name}_ms" for figure, key in FIGURES.items()}
        yield from _section(labels, summary)
    yield "Engine".center(WIDTH, "-")
    yield from _section(ENGINE, summary)
    yield "=" * WIDTH


def _section(labels: Mapping[str, str], summary: Mapping[str, Any]) -> Iterator[str]:
    for label, key in labels.items():
        scale = 100 if label.endswith("(%)") else 1
        yield f"{label + ':':<{LABEL_WIDTH}} {_figure(summary[key], scale)}"


def _figure(value: float | None, scale: int) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value * scale:.2f}"
