"""Utilization of the GPUs' peak FLOPs and bandwidth by the work that the model's tokens require.

FLOPs and bytes are those of all tokens that steps computed, whatever timed the steps: no padding, no tiles, no activations
between kernels, and what is computed again after a preemption counts again. docs/results.md has the formulas.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import numpy as np

from sim.deployment import Deployment
from sim.engine.records import Floats, Ints, LeapRecords
from sim.specs.hardware import HardwareProfile
from sim.specs.model import Attention, Experts, Linear, ModelSpec
from sim.specs.operator_fits import ComputeDtype
from sim.steptime.expert_routing import ExpertRouting, expected_distinct_experts
from sim.steptime.operators import compute_dtype

ROWS_AT_ONCE = 1 << 16


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
    work = Work.total(itertools.starmap(_needed, pools))
    most = Work.total(itertools.starmap(_possible, pools))
    return {
        "model_flops_utilization": work.flops / most.flops if most.flops else None,
        "memory_bandwidth_utilization": work.num_bytes / most.num_bytes if most.num_bytes else None,
        "arithmetic_intensity": work.flops / work.num_bytes if work.num_bytes else None,
    }


def _needed(deployment: Deployment, leaps: LeapRecords) -> Work:
    routing = deployment.step_times.expert_routing
    return needed(deployment.model, leaps, deployment.engine.kv_cache_dtype_bytes, routing)


def _possible(deployment: Deployment, leaps: LeapRecords) -> Work:
    """At the peaks of its GPUs, in the time in which steps ran."""
    gpu, busy_s = deployment.gpu, leaps.busy_s * deployment.engine.num_gpus
    peak = gpu.peak_flops[weights_dtype(deployment.model, gpu)]
    return Work(busy_s * peak, busy_s * gpu.memory_bandwidth_bytes_per_s)


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
    num_tokens = leaps.num_decodes + leaps.num_chunk_tokens
    all_tokens, num_steps = _in_all_steps(num_tokens, leaps), leaps.num_ran_steps
    flops = num_bytes = 0.0
    for layer, count in model.distinct_layers.items():
        attention = _attention_work(layer.attention, leaps, kv_dtype_bytes)
        flops += count * (all_tokens * sum(map(_flops_per_row, layer.linears)) + attention.flops)
        num_bytes += count * (num_steps * sum(linear.num_bytes for linear in layer.linears) + attention.num_bytes)
        if layer.experts:
            flops += count * all_tokens * _flops_per_token(layer.experts)
            num_bytes += count * _expert_bytes(layer.experts, num_tokens, leaps, routing)
    head, sampling_steps = model.output_head, int(leaps.num_steps[leaps.num_sampled > 0].sum())
    flops += _in_all_steps(leaps.num_sampled, leaps) * _flops_per_row(head)
    return Work(flops, num_bytes + sampling_steps * head.num_bytes)


def _in_all_steps(column: Ints, leaps: LeapRecords) -> float:
    """The sum over all steps of a column that has the value of one step of each leap."""
    return _total(lambda some, count: some.astype(np.float64) * count, column, leaps.num_steps)


def _total(of: Callable[..., Floats], *columns: Ints) -> float:
    """The sum of a function of the rows of some columns, a part of them at a time: floats take more memory than the columns.

    No BLAS: its threads cost more than they save.
    """
    parts = (slice(first, first + ROWS_AT_ONCE) for first in range(0, len(columns[0]), ROWS_AT_ONCE))
    return sum((float(of(*(column[part] for column in columns)).sum()) for part in parts), 0.0)


def _flops_per_row(linear: Linear) -> int:
    return 2 * linear.in_features * linear.out_features


def _flops_per_token(experts: Experts) -> int:
    return 2 * experts.num_experts_per_tok * experts.num_weights_per_expert


def _expert_bytes(experts: Experts, num_tokens: Ints, leaps: LeapRecords, routing: ExpertRouting) -> float:
    """Weights of the experts that the tokens of each step activate."""
    num_steps = np.bincount(num_tokens, leaps.num_steps)
    counts = np.unique(num_tokens)
    awake = [expected_distinct_experts(float(tokens), experts, routing) for tokens in counts.tolist()]
    return float((num_steps[counts] * np.array(awake)).sum()) * experts.num_bytes / experts.num_experts


def _attention_work(attention: Attention, leaps: LeapRecords, kv_dtype_bytes: float) -> Work:
    """Of one layer: each query with the keys that it sees; keys and values, read once a request and step, and written."""
    num_tokens = _in_all_steps(leaps.num_decodes + leaps.num_chunk_tokens, leaps)
    if attention.kind == "linear":
        num_states = _in_all_steps(leaps.num_decodes + leaps.num_chunks, leaps)
        per_token = 4 * attention.num_heads * attention.head_dim * attention.v_head_dim
        return Work(num_tokens * per_token, 2 * num_states * attention.state_bytes)
    most = attention.window or attention.index_topk
    decodes = (leaps.decode_context_tokens, leaps.num_decodes, leaps.num_steps)
    chunks = (leaps.chunk_tokens, leaps.chunk_computed_tokens)
    decode_keys = _total(partial(_decode_keys, most=most), *decodes)
    seen = decode_keys + _total(partial(_keys_seen, most=most), *chunks)
    read = decode_keys + _total(partial(_keys_read, window=attention.window), *chunks)
    flops_per_key = 2 * attention.num_heads * (attention.head_dim + attention.v_head_dim)
    return Work(seen * flops_per_key, (read + num_tokens) * attention.kv_numbers_per_token * kv_dtype_bytes)


def _decode_keys(context_tokens: Ints, num_decodes: Ints, num_steps: Ints, most: int | None) -> Floats:
    """Keys that the decodes of each leap see in all its steps, at most so many each: contexts grow by a token a step."""
    first, grows, count = (column.astype(float) for column in (context_tokens, num_decodes, num_steps))
    if most is None:
        return np.asarray(first * count + grows * count * (count - 1) / 2)
    limit = most * grows
    below = np.clip(np.ceil((limit - first) / np.maximum(1.0, grows)), 0.0, count)
    return np.asarray(first * below + grows * below * (below - 1) / 2 + (count - below) * limit)


def _keys_seen(tokens: Ints, computed: Ints, most: int | None) -> Floats:
    """Summed over the queries of each chunk: the first sees those computed before and itself."""
    first, last = computed + 1.0, computed + tokens.astype(float)
    if most is None:
        return np.asarray((first + last) * tokens / 2)
    below = np.clip(most - computed, 0.0, tokens)
    return np.asarray((first + computed + below) * below / 2 + (tokens - below) * most)


def _keys_read(tokens: Ints, computed: Ints, window: int | None) -> Floats:
    """Those computed before each chunk, as far as its first query sees them, and its own."""
    return np.asarray(tokens + (computed if window is None else np.minimum(computed, window)), dtype=np.float64)
