"""The figures of a run, under the names `vllm bench serve --save-result` gives them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sim.deployment import Deployment
from sim.engine.leap_records import LeapRecords
from sim.engine.records import Floats, Ints, Records, RequestRecords
from sim.metrics.cuda_graphs import cudagraph_step_fraction
from sim.metrics.latencies import is_completed, latencies
from sim.metrics.lora import lora_figures
from sim.metrics.offload import loads_figures
from sim.metrics.pipeline import pipeline_figures
from sim.metrics.speculation import speculation_figures
from sim.metrics.statistics import Statistics, statistics_of
from sim.metrics.swaps import swap_figures
from sim.metrics.utilization import utilization
from sim.steptime.graphs import GraphDispatch
from sim.units import MS


def summary_of(deployment: Deployment, records: Records) -> dict[str, Any]:
    """The summary of a deployment's run."""
    figures = summarize(records, num_gpu_blocks=deployment.plan.num_gpu_blocks, dispatch=deployment.graph_dispatch)
    offload = {"kv_offload": loads_figures(records.offload, records.prefix_cache_queries)} if deployment.offload else {}
    of_modes = (
        offload
        | lora_figures(records)
        | swap_figures(records)
        | pipeline_figures(records)
        | speculation_figures(records)
    )
    return figures | utilization((deployment, records.leaps)) | of_modes


def summarize(records: Records, *, num_gpu_blocks: int, dispatch: GraphDispatch) -> dict[str, Any]:
    """All figures that follow from the records alone; None if there was nothing to measure.

    `duration` runs from the first arrival to the last completion, in seconds. `num_gpu_blocks` includes the null block;
    `dispatch` says which steps replay a CUDA graph.
    """
    requests = records.requests
    return (
        totals(requests)
        | {f"p{percent}_arrival_s": arrived_s(requests.arrival_s, percent) for percent in (1, 5)}
        | _latency_figures(records)
        | {
            "num_preemptions": int(requests.num_preemptions.sum()),
            "num_gpu_blocks": num_gpu_blocks,
            "max_kv_cache_usage": max_kv_cache_usage(records.leaps, num_gpu_blocks),
            "prefix_cache_hit_rate": ratio(records.prefix_cache_hits, records.prefix_cache_queries),
            "cudagraph_step_fraction": cudagraph_step_fraction(records.leaps, dispatch),
            "gpu_busy_fraction": gpu_busy_fraction(records),
            "num_steps": records.leaps.num_ran_steps,
        }
    )


def arrived_s(arrival_s: Floats, percent: int) -> float | None:
    """Seconds from the first arrival until so many per cent of the requests had arrived; None without requests."""
    if not len(arrival_s):
        return None
    return float(np.percentile(arrival_s, percent, method="inverted_cdf") - arrival_s.min())


def kv_cache_usage(num_free_blocks: Ints, num_gpu_blocks: int) -> Floats:
    """The gauge `kv_cache_usage_perc` of vLLM: the null block is not counted, cached free blocks count as free."""
    return 1.0 - num_free_blocks / (num_gpu_blocks - 1)


def max_kv_cache_usage(leaps: LeapRecords, num_gpu_blocks: int) -> float | None:
    """The highest after any step."""
    return float(kv_cache_usage(np.asarray(leaps.fewest_free_blocks), num_gpu_blocks)) if len(leaps) else None


def gpu_busy_fraction(records: Records) -> float | None:
    """Share of the time from first arrival to last step in which a step was running."""
    leaps = records.leaps
    if not len(leaps):
        return None
    return ratio(leaps.busy_s, leaps.last_end_s - float(records.requests.arrival_s[0]))


def totals(requests: RequestRecords) -> dict[str, Any]:
    """Numbers of requests and tokens, and throughput; `duration` as in `summarize`."""
    done = is_completed(requests)
    num_completed = int(done.sum())
    return totals_json(
        arrived=len(requests),
        completed=num_completed,
        rejected=len(requests.rejected),
        failed=len(requests.failed),
        duration_s=float(np.nanmax(requests.finish_s) - requests.arrival_s[0]) if num_completed else None,
        input_tokens=int(requests.prompt_tokens.sum(where=done)),
        output_tokens=int(requests.generated_tokens.sum(where=done)),
    )


def totals_json(
    *,
    arrived: int,
    completed: int,
    rejected: int,
    failed: int,
    duration_s: float | None,
    input_tokens: int,
    output_tokens: int,
) -> dict[str, Any]:
    """The same from what was counted; tokens are those of the requests that completed."""
    return {
        "arrived": arrived,
        "completed": completed,
        "rejected": rejected,
        "failed": failed,
        "unfinished": arrived - completed - rejected - failed,
        "duration": duration_s,
        "total_input_tokens": input_tokens,
        "total_output_tokens": output_tokens,
        "request_throughput": ratio(completed, duration_s),
        "output_throughput": ratio(output_tokens, duration_s),
        "total_token_throughput": ratio(input_tokens + output_tokens, duration_s),
    }


def _latency_figures(records: Records) -> dict[str, float | None]:
    of_requests = latencies(records.requests)
    return in_ms(
        {
            "ttft": statistics_of(of_requests.ttft),
            "tpot": statistics_of(of_requests.tpot),
            "itl": statistics_of(records.gaps),
            "e2el": statistics_of(of_requests.e2el),
        }
    )


def in_ms(figures: Mapping[str, Statistics]) -> dict[str, float | None]:
    """Statistics of latencies in seconds, as the keys of `vllm bench serve`: `mean_ttft_ms`."""
    return {
        f"{what}_{name}_ms": None if value is None else value / MS
        for name, found in figures.items()
        for what, value in found._asdict().items()
    }


def ratio(part: float, whole: float | None) -> float | None:
    """None where there is no whole."""
    return part / whole if whole else None
