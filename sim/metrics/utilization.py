"""Utilization of the GPUs' peak FLOPs and bandwidth by the work that the model's tokens require.

FLOPs and bytes are those of all tokens that steps computed, whatever timed the steps: no padding, no tiles, no activations
between kernels, and what is computed again after a preemption counts again. Of contexts that several decodes read together, attention counts
what is read, of FLOPs as well. docs/results.md has the formulas.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np

from sim.deployment import Deployment
from sim.engine.leap_columns import Leaps
from sim.engine.leap_records import CHUNK, LEAPS_AT_ONCE, LeapRecords
from sim.engine.narrow import Rows
from sim.engine.records import Floats, Ints
from sim.metrics.cuda_graphs import counted_on
from sim.specs.hardware import HardwareProfile
from sim.specs.model import Attention, Experts, Linear, ModelSpec
from sim.specs.operator_fits import ComputeDtype
from sim.steptime.expert_routing import ExpertRouting, expected_distinct_experts
from sim.steptime.operators import compute_dtype

T = TypeVar("T")


class Work(NamedTuple):
    """The work of a run, over all GPUs of a replica."""

    flops: float
    num_bytes: float

    @classmethod
    def total(cls, parts: Iterable["Work"]) -> "Work":
        flops, num_bytes = map(sum, zip(*parts, strict=True))
        return cls(flops, num_bytes)


def utilization(*pools: tuple[Deployment, LeapRecords]) -> dict[str, float | None]:
    """Shares of the peak FLOPs and of the bandwidth in the time in which steps ran, and FLOPs a byte; None without steps."""
    work = Work.total(itertools.starmap(work_of, pools))
    return shares(work, Work.total(possible(deployment, leaps.busy_s) for deployment, leaps in pools))


def shares(work: Work, most: Work) -> dict[str, float | None]:
    """What was done, of the most that could be done in the time in which steps ran."""
    return {
        "model_flops_utilization": work.flops / most.flops if most.flops else None,
        "memory_bandwidth_utilization": work.num_bytes / most.num_bytes if most.num_bytes else None,
        "arithmetic_intensity": work.flops / work.num_bytes if work.num_bytes else None,
    }


def work_of(deployment: Deployment, leaps: LeapRecords) -> Work:
    """What the steps of a deployment need."""
    routing = deployment.step_times.expert_routing
    return needed(deployment.model, leaps, deployment.engine.kv_cache_dtype_bytes, routing)


def possible(deployment: Deployment, busy_s: float) -> Work:
    """At the peaks of its GPUs, where steps ran so long."""
    gpu, gpu_s = deployment.gpu, busy_s * deployment.engine.num_gpus
    peak = gpu.peak_flops[weights_dtype(deployment.model, gpu)]
    return Work(gpu_s * peak, gpu_s * gpu.memory_bandwidth_bytes_per_s)


def weights_dtype(model: ModelSpec, gpu: HardwareProfile) -> ComputeDtype:
    """The dtype in which most of a token's FLOPs with weights are computed."""
    flops: Counter[ComputeDtype] = Counter()
    for layer, count in model.distinct_layers.items():
        for linear in layer.linears:
            flops[compute_dtype(linear.weight, gpu)] += count * _flops_per_row(linear)
        if layer.experts:
            flops[compute_dtype(layer.experts.weight, gpu)] += count * _flops_per_token(layer.experts)
    return flops.most_common(1)[0][0]


def needed(model: ModelSpec, leaps: LeapRecords, kv_dtype_bytes: float, routing: ExpertRouting) -> Work:
    """Matrices, experts and attention of all layers, and the output head."""
    all_tokens, num_steps = _in_all_steps(leaps, lambda some: some.num_tokens), leaps.num_ran_steps
    flops = num_bytes = 0.0
    for layer, count in model.distinct_layers.items():
        attention = _attention_work(layer.attention, leaps, kv_dtype_bytes)
        flops += count * (all_tokens * sum(map(_flops_per_row, layer.linears)) + attention.flops)
        num_bytes += count * (num_steps * sum(linear.num_bytes for linear in layer.linears) + attention.num_bytes)
        if layer.experts:
            flops += count * all_tokens * _flops_per_token(layer.experts)
            num_bytes += count * _expert_bytes(layer.experts, leaps, routing)
    head = model.output_head
    sampling_steps = sum(int(part.num_steps[part.num_sampled > 0].sum()) for part in leaps.parts())
    flops += _in_all_steps(leaps, lambda some: np.asarray(some.num_sampled + some.num_drafts)) * _flops_per_row(head)
    return Work(flops, num_bytes + sampling_steps * head.num_bytes)


def _in_all_steps(leaps: LeapRecords, column: Callable[[Leaps], Ints]) -> float:
    """The sum over all steps of a column that has the value of one step of each leap."""
    return _total(leaps.parts(), lambda some: column(some).astype(np.float64) * some.num_steps)


def _total(parts: Iterable[T], of: Callable[[T], Floats]) -> float:
    """The sum of a function of some leaps or chunks over all of them: floats take more memory than the records.

    No BLAS: its threads cost more than they save.
    """
    return sum((float(of(part).sum()) for part in parts), 0.0)


def _flops_per_row(linear: Linear) -> int:
    return 2 * linear.in_features * linear.out_features


def _flops_per_token(experts: Experts) -> int:
    return 2 * experts.num_experts_per_tok * experts.num_weights_per_expert


def _expert_bytes(experts: Experts, leaps: LeapRecords, routing: ExpertRouting) -> float:
    """Weights of the experts that the tokens of each step activate."""
    num_steps = np.zeros(0)
    for part in leaps.parts():
        num_steps = counted_on(num_steps, part.num_tokens, part.num_steps)
    counts = np.flatnonzero(num_steps)
    awake = [expected_distinct_experts(float(tokens), experts, routing) for tokens in counts.tolist()]
    return float((num_steps[counts] * np.array(awake)).sum()) * experts.num_bytes / experts.num_experts


def _attention_work(attention: Attention, leaps: LeapRecords, kv_dtype_bytes: float) -> Work:
    """Of one layer: each query with the keys that it sees; keys and values, read once a request and step, and written."""
    num_tokens = _in_all_steps(leaps, lambda some: some.num_tokens)
    if attention.kind == "linear":
        num_states = _in_all_steps(leaps, lambda some: np.asarray(some.num_decodes + some.num_chunks))
        per_token = 4 * attention.num_heads * attention.head_dim * attention.v_head_dim
        return Work(num_tokens * per_token, 2 * num_states * attention.state_bytes)
    most = attention.window or attention.index_topk
    decode_keys = _total(leaps.parts(), partial(_decode_keys, most=most))
    seen = decode_keys + _total(leaps.chunks.parts(LEAPS_AT_ONCE), partial(_keys_seen, most=most))
    read = decode_keys + _total(leaps.chunks.parts(LEAPS_AT_ONCE), partial(_keys_read, window=attention.window))
    flops_per_key = 2 * attention.num_heads * (attention.head_dim + attention.v_head_dim)
    return Work(seen * flops_per_key, (read + num_tokens) * attention.kv_numbers_per_token * kv_dtype_bytes)


def _decode_keys(leaps: Leaps, most: int | None) -> Floats:
    """Keys that the decodes of each leap see in all its steps, at most so many each: contexts grow by a token a step."""
    columns = (leaps.decode_context_tokens, leaps.num_decodes, leaps.num_steps)
    first, grows, count = (column.astype(float) for column in columns)
    if most is None:
        return np.asarray(first * count + grows * count * (count - 1) / 2)
    limit = most * grows
    below = np.clip(np.ceil((limit - first) / np.maximum(1.0, grows)), 0.0, count)
    return np.asarray(first * below + grows * below * (below - 1) / 2 + (count - below) * limit)


def _keys_seen(chunks: Rows, most: int | None) -> Floats:
    """Summed over the queries of each chunk: the first sees those computed before and itself."""
    tokens, computed = (chunks[name] for name in CHUNK.names or ())
    first, last = computed + 1.0, computed + tokens.astype(float)
    if most is None:
        return np.asarray((first + last) * tokens / 2)
    below = np.clip(most - computed, 0.0, tokens)
    return np.asarray((first + computed + below) * below / 2 + (tokens - below) * most)


def _keys_read(chunks: Rows, window: int | None) -> Floats:
    """Those computed before each chunk, as far as its first query sees them, and its own."""
    tokens, computed = (chunks[name] for name in CHUNK.names or ())
    return np.asarray(tokens + (computed if window is None else np.minimum(computed, window)), dtype=np.float64)
