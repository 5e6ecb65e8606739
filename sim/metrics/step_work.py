"""FLOPs and bytes that a step's tokens require, operator by operator, over all GPUs: no padding, no tiles, no activations.

As sim/metrics/utilization.py has them for a whole run.
"""

from collections import defaultdict

from sim.metrics.utilization import Work
from sim.specs.model import Attention, ModelSpec
from sim.steptime.expert_routing import ExpertRouting, expected_distinct_experts
from sim.steptime.protocol import StepShape

NOTHING = Work(0.0, 0.0)


def step_work(model: ModelSpec, shape: StepShape, kv_dtype_bytes: float, routing: ExpertRouting) -> dict[str, Work]:
    """By the names of the roofline's operators; `sampling` is the output head."""
    work: defaultdict[str, Work] = defaultdict(lambda: NOTHING)
    tokens = float(shape.num_tokens)
    for layer, count in model.distinct_layers.items():
        for linear in layer.linears:
            flops = 2 * tokens * linear.in_features * linear.out_features
            work[linear.name] = _plus(work[linear.name], flops, linear.num_bytes, count)
        attended = _attention(layer.attention, shape, kv_dtype_bytes)
        work["attention"] = _plus(work["attention"], attended.flops, attended.num_bytes, count)
        if experts := layer.experts:
            flops = 2 * tokens * experts.num_experts_per_tok * experts.num_weights_per_expert
            awake = expected_distinct_experts(tokens, experts, routing) / experts.num_experts
            work["experts"] = _plus(work["experts"], flops, awake * experts.num_bytes, count)
    head, num_sampled = model.output_head, shape.num_sampled + shape.num_drafts
    if num_sampled:
        work["sampling"] = Work(2.0 * num_sampled * head.in_features * head.out_features, head.num_bytes)
    return dict(work)


def _plus(work: Work, flops: float, num_bytes: float, count: int) -> Work:
    return Work(work.flops + count * flops, work.num_bytes + count * num_bytes)


def _attention(attention: Attention, shape: StepShape, kv_dtype_bytes: float) -> Work:
    """Of one layer: each query with the keys that it sees; keys and values read once a request, and written."""
    if attention.kind == "linear":
        per_token = 4 * attention.num_heads * attention.head_dim * attention.v_head_dim
        return Work(float(shape.num_tokens * per_token), 2.0 * shape.num_requests * attention.state_bytes)
    window, most = attention.window, attention.window or attention.index_topk
    decoded = float(shape.decode_context_tokens)
    seen = read = min(decoded, float(most * shape.num_decodes)) if most else decoded
    for tokens, computed in shape.chunks:
        seen += _keys_seen(tokens, computed, most)
        read += tokens + (computed if window is None else min(computed, window))
    flops_per_key = 2 * attention.num_heads * (attention.head_dim + attention.v_head_dim)
    return Work(seen * flops_per_key, (read + shape.num_tokens) * attention.kv_numbers_per_token * kv_dtype_bytes)


def _keys_seen(tokens: int, computed: int, most: int | None) -> float:
    """Summed over the queries of a chunk, the first of which sees those computed before and itself; at most so many each."""
    below = tokens if most is None else min(max(most - computed, 0), tokens)
    return (2 * computed + 1 + below) * below / 2 + (tokens - below) * (most or 0)
