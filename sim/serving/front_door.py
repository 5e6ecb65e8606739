"""Requests from a trace, and the checks at the front door: what can never run is turned away with its reason."""

from collections.abc import Sequence
from typing import Protocol

from sim.serving.config import SchedulerConfig
from sim.serving.content import shared_block_keys
from sim.serving.kv_cache import can_ever_fit
from sim.serving.prefix_cache import NO_COPIES, KeyedBlocks
from sim.serving.request import Request
from sim.workload.trace import Trace


def make_requests(trace: Trace, config: SchedulerConfig) -> tuple[list[Request], int]:
    """One request a row, in trace order, its output capped by max_model_len; and how many block contents are shared."""
    enable = config.enable_prefix_caching and trace.segments is not None
    keys, num_keys = shared_block_keys(trace, config.block_size) if enable else ([], 0)
    requests, num_groups = [], len(config.kv_groups)
    rows = zip(
        trace.request_id,
        trace.arrival_s.tolist(),
        trace.prompt_tokens.tolist(),
        trace.output_tokens.tolist(),
        strict=True,
    )
    for index, (request_id, arrival_s, num_prompt_tokens, num_output_tokens) in enumerate(rows):
        max_tokens = max(0, min(num_output_tokens, config.max_model_len - num_prompt_tokens))
        request = Request(index, request_id, arrival_s, num_prompt_tokens, max_tokens)
        if trace.priority is not None:
            request.priority = int(trace.priority[index])
        if enable and len(keys[index]):
            request.keyed = KeyedBlocks(keys[index], [NO_COPIES] * num_groups, [0] * num_groups)
            request.num_shared_blocks = len(keys[index])
        requests.append(request)
    return requests, num_keys


class Arriving(Protocol):
    """What the front door looks at, of whichever engine's requests."""

    num_prompt_tokens: int
    max_tokens: int
    rejected: str | None


def refused_by_front_end(request: Arriving, config: SchedulerConfig) -> str | None:
    """vLLM's own checks before a request reaches the engine: the reason, or None."""
    if request.num_prompt_tokens < 1:
        return "the prompt is empty"
    if request.num_prompt_tokens >= config.max_model_len:
        return (
            f"a prompt of {request.num_prompt_tokens} tokens leaves no room for output"
            f" within max_model_len {config.max_model_len}"
        )
    return "no output was asked for" if request.max_tokens < 1 else None


def never_fits(request: Arriving, config: SchedulerConfig) -> str | None:
    """Why a request would wait or recompute for ever in vLLM's bare scheduler, or None."""
    num_kv_tokens = request.num_prompt_tokens + request.max_tokens - 1
    if can_ever_fit(num_kv_tokens, config):
        return None
    return (
        f"{num_kv_tokens} tokens of prompt and output need more than the {config.num_usable_blocks} KV blocks there are"
    )


def reject_impossible(requests: Sequence[Arriving], config: SchedulerConfig, *, capacity_too: bool = True) -> None:
    """Mark requests that can never run; without `capacity_too`, only those that vLLM itself refuses."""
    for request in requests:
        request.rejected = refused_by_front_end(request, config)
        if capacity_too and not request.rejected:
            request.rejected = never_fits(request, config)
