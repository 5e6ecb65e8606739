"""Requests and steps as named columns: what the CSV files and the DataFrames hold."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.deployment import Deployment
from sim.engine.records import Ints, RequestRecords
from sim.engine.step_records import StepRecords
from sim.metrics.cuda_graphs import step_graphs
from sim.metrics.latencies import end_to_end_s, queue_time_s, time_per_output_token_s, time_to_first_token_s
from sim.metrics.step_parts import PartColumns, step_parts, within_steps
from sim.metrics.summary import kv_cache_usage
from sim.steptime.graphs import GraphDispatch
from sim.units import MS
from sim.workload.trace import Trace

Columns = dict[str, NDArray[Any] | Sequence[Any]]


def request_columns(trace: Trace, requests: RequestRecords, replica: Ints | None = None) -> Columns:
    """One row a request in trace order; a time is NaN if the event never happened, `rejected` and `failed` are reasons or None.

    `session_id`, `n`, `priority` and `lora_name` are present if the trace has them, `replica` (-1: none) if it is given.
    """
    columns: Columns = {"request_id": trace.request_id, "arrival_s": requests.arrival_s}
    if trace.session_id is not None:
        columns["session_id"] = trace.session_id
    if trace.n is not None:
        columns["n"] = trace.n
    if trace.priority is not None:
        columns["priority"] = trace.priority
    if trace.lora_name is not None:
        columns["lora_name"] = trace.lora_name
    if replica is not None:
        columns["replica"] = replica
    return columns | _outcome(requests)


def _outcome(requests: RequestRecords) -> Columns:
    return {
        "prompt_tokens": requests.prompt_tokens,
        "output_tokens": requests.output_tokens,
        "generated_tokens": requests.generated_tokens.astype(np.int64),
        "first_scheduled_s": requests.first_scheduled_s,
        "first_token_s": requests.first_token_s,
        "finish_s": requests.finish_s,
        "queue_time_ms": queue_time_s(requests) / MS,
        "ttft_ms": time_to_first_token_s(requests) / MS,
        "tpot_ms": time_per_output_token_s(requests) / MS,
        "e2el_ms": end_to_end_s(requests) / MS,
        "num_cached_tokens": requests.num_cached_tokens.astype(np.int64),
        "num_preemptions": requests.num_preemptions.astype(np.int64),
        "rejected": [requests.rejected.get(row) for row in range(len(requests))],
        "failed": [requests.failed.get(row) for row in range(len(requests))],
    }


def deployed_step_columns(deployment: Deployment, steps: StepRecords) -> Columns:
    """`step_columns` of steps that ran there."""
    parts = step_parts(steps, deployment.kernel_times)
    if deployment.lock_step:
        parts = within_steps(parts, steps.end_s - steps.start_s)
    blocks, dispatch = deployment.plan.num_gpu_blocks, deployment.graph_dispatch
    columns = step_columns(steps, parts, num_gpu_blocks=blocks, dispatch=dispatch)
    return columns | draft_columns(steps) if deployment.engine.speculation else columns


def draft_columns(steps: StepRecords) -> Columns:
    """What the decodes of each step verified, and how much of it was accepted."""
    return {"num_draft_tokens": steps.num_drafts, "num_accepted_tokens": steps.num_accepted}


def joined(parts: Sequence[Columns]) -> Columns:
    """The columns of several, one after the other; 0 where one has not what others have."""
    names = dict.fromkeys(name for part in parts for name in part)
    nothing = [np.zeros(len(part["start_s"]), dtype=np.int64) for part in parts]
    return {
        name: np.concatenate([part.get(name, none) for part, none in zip(parts, nothing, strict=True)])
        for name in names
    }


def step_columns(steps: StepRecords, parts: PartColumns, *, num_gpu_blocks: int, dispatch: GraphDispatch) -> Columns:
    """One row a step in order of launch, with the parts of its time; `kv_cache_usage` as vLLM's gauge, a share of the usable
    blocks.
    """
    return {
        "start_s": steps.start_s,
        "end_s": steps.end_s,
        **parts._asdict(),
        "num_decodes": steps.num_decodes,
        "num_chunk_tokens": steps.num_chunk_tokens,
        "cudagraph": step_graphs(steps, dispatch),
        "num_running": steps.num_running,
        "num_waiting": steps.num_waiting,
        "num_free_blocks": steps.num_free_blocks,
        "kv_cache_usage": kv_cache_usage(steps.num_free_blocks, num_gpu_blocks),
        "num_preempted": steps.num_preempted,
    }
