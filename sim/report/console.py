"""The result table of `vllm bench serve`, followed by figures of the engine that a client cannot measure."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from sim.report.intervals import between, sketched
from sim.report.parts import pool_rows, replica_rows, stage_rows

WIDTH = 50
LABEL_WIDTH = 40

TOTALS = {
    "Successful requests": "completed",
    "Rejected requests": "rejected",
    "Failed requests": "failed",
    "Unfinished requests": "unfinished",
    "Benchmark duration (s)": "duration",
    "Total input tokens": "total_input_tokens",
    "Total generated tokens": "total_output_tokens",
    "Request throughput (req/s)": "request_throughput",
    "Request goodput (req/s)": "request_goodput",
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
    "External prefix cache hit rate (%)": "external_prefix_cache_hit_rate",
    "Preemptions": "num_preemptions",
    "Swapped out": "num_swapped_out",
    "Peak swap space usage (%)": "max_swap_space_usage",
    "Engine steps": "num_steps",
    "Steps in a CUDA graph (%)": "cudagraph_step_fraction",
    "GPU busy (%)": "gpu_busy_fraction",
    "Pipeline bubbles (%)": "pipeline_bubble_share",
    "Steps of all ranks": "num_lock_steps",
    "Dummy steps of ranks (%)": "dummy_step_share",
    "Ranks waiting for the slowest (%)": "rank_waiting_share",
    "Tokens that are padding (%)": "rank_padding_share",
    "Steps in two micro-batches (%)": "microbatched_step_share",
    "Model FLOPs utilization (%)": "model_flops_utilization",
    "Memory bandwidth utilization (%)": "memory_bandwidth_utilization",
    "Arithmetic intensity (FLOPs/byte)": "arithmetic_intensity",
}
ELSEWHERE = ("kv_offload", "kv_store", "kv_pulls")
SPECULATION = {
    "Acceptance rate (%)": "spec_decode_acceptance_rate",
    "Acceptance length": "spec_decode_acceptance_length",
    "Drafts": "spec_decode_num_drafts",
    "Draft tokens": "spec_decode_draft_tokens",
    "Accepted tokens": "spec_decode_accepted_tokens",
}
OVER_TIME = {
    "Replicas on average": "mean_replicas",
    "Most replicas": "max_replicas",
    "GPU hours": "gpu_hours",
}
BUSY_WITH = {
    "HBM bandwidth (% of busy time):": "hbm_bandwidth",
    "Compute (% of busy time):": "compute",
    "Links of the GPUs (% of busy time):": "links",
    "Host and launches (% of busy time):": "host",
}
WAITING_FOR = {
    "Waiting for token budget (% of time):": "token_budget",
    "Waiting for max_num_seqs (% of time):": "max_num_seqs",
    "Waiting for KV space (% of time):": "kv_space",
    "Waiting for a batch to end (% of time):": "static_batch",
}


def result_table(summary: Mapping[str, Any]) -> str:
    """The whole summary as text of fixed width; `-` if there was nothing to measure."""
    return "\n".join(_lines(summary))


def _lines(summary: Mapping[str, Any]) -> Iterator[str]:
    title = " Serving Benchmark Result ".center(WIDTH, "=")
    yield f"{title}  90 % interval" if summary.get("confidence", {}).get("intervals") else title
    yield from _section(TOTALS, summary)
    for name, title in LATENCIES.items():
        yield title.center(WIDTH, "-")
        labels = {f"{figure} {name.upper()} (ms)": f"{key}_{name}_ms" for figure, key in FIGURES.items()}
        yield from _section(labels, summary)
    if "slo" in summary or "slo_classes" in summary:
        yield "Service-level Objectives".center(WIDTH, "-")
        yield from _kept(summary)
    yield "Engine".center(WIDTH, "-")
    yield from _section(ENGINE, {**summary, **_elsewhere(summary)})
    if "spec_decode_num_drafts" in summary:
        yield "Speculative Decoding".center(WIDTH, "-")
        yield from _speculation(summary)
    if "pools" in summary:
        yield "Pools".center(WIDTH, "-")
        yield from pool_rows(summary["pools"])
    if "replicas" in summary:
        yield "Replicas".center(WIDTH, "-")
        if "replicas_over_time" in summary:
            yield from _section(OVER_TIME, summary)
        yield from replica_rows(summary["replicas"])
    if "stages" in summary:
        yield "Stages".center(WIDTH, "-")
        yield from stage_rows(summary["stages"])
    if "limits" in summary:
        yield "What limits it".center(WIDTH, "-")
        yield from _limits(summary["limits"])
    yield "=" * WIDTH


def _elsewhere(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What came of prompts from host memory, a store or peers, together."""
    key = "external_prefix_cache_hit_rate"
    rates = [summary[name][key] for name in ELSEWHERE if key in summary.get(name, {})]
    if not rates:
        return {}
    return {key: None if None in rates else sum(rates)}


def _speculation(summary: Mapping[str, Any]) -> Iterator[str]:
    """As `vllm bench serve` prints it: the rate is in percent already, and then the rate at each position."""
    for label, key in SPECULATION.items():
        yield f"{label + ':':<{LABEL_WIDTH}} {_figure(summary[key], 1)}"
    for position, rate in enumerate(summary["spec_decode_per_position_acceptance_rates"]):
        yield f"{f'  Position {position} (%):':<{LABEL_WIDTH}} {_figure(rate, 100)}"


def _kept(summary: Mapping[str, Any]) -> Iterator[str]:
    """How far limits are kept, class by class where classes have their own."""
    for part in summary.get("slo_classes", ()):
        labels = {f"{part['class']}: {label}": key for label, key in _objectives(part["slo"]).items()}
        yield from _section(labels, {**part, **_infinite(part)})
    yield from _section(_objectives(summary.get("slo", {})), {**summary, **_infinite(summary)})


def _objectives(slo: Mapping[str, float]) -> dict[str, str]:
    """Each limited percentile over all requests, beside its limit, and how many requests are within every limit."""
    labels = {f"{name}, limit {limit_ms:g} (ms)": f"slo_{name}_ms" for name, limit_ms in slo.items()}
    return labels | {"Requests within all limits (%)": "slo_attainment"}


def _infinite(summary: Mapping[str, Any]) -> dict[str, float]:
    """The limited percentiles that are infinite because requests were not served; JSON has null for them."""
    keys = (f"slo_{name}_ms" for name in summary.get("slo", ()))
    return {key: math.inf for key in keys if summary[key] is None and summary["completed"] < summary["arrived"]}


def _limits(limits: Mapping[str, Any]) -> Iterator[str]:
    """Shares of the busy time by resource, shares of all time by what requests waited for, and queueing in the slowest TTFT."""
    shares = {label: limits["busy"].get(name) for label, name in BUSY_WITH.items()}
    shares |= {label: limits["queued"][name] for label, name in WAITING_FOR.items() if name in limits["queued"]}
    shares["Queueing in the slowest 1% of TTFT (%):"] = limits["p99_ttft_queue_share"]
    for label, share in shares.items():
        yield f"{label:<{LABEL_WIDTH}} {_figure(share, 100)}"


def _section(labels: Mapping[str, str], summary: Mapping[str, Any]) -> Iterator[str]:
    intervals = summary.get("confidence", {}).get("intervals", {})
    for label, key in labels.items():
        if key not in summary:
            continue
        scale = 100 if label.endswith("(%)") else 1
        line = f"{label + ':':<{LABEL_WIDTH}} {_figure(summary[key], scale)}"
        low, high = intervals.get(key, (0.0, 0.0))
        beside = sketched(summary, key) if low == high else between((low, high), scale)
        yield f"{line:<{WIDTH}}  {beside}" if beside else line


def _figure(value: float | None, scale: int) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value * scale:.2f}"
