"""Requests from a trace, the checks at the front door, and the process that brings them in on time."""

from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

import simpy
from simpy.events import URGENT

from sim.serving.config import SchedulerConfig
from sim.serving.content import BlockKeys, output_id, private_prompt_id
from sim.serving.kv_cache import can_ever_fit
from sim.serving.request import Request, RequestStatus
from sim.workload.trace import Trace


class Door(Protocol):
    """Whatever takes requests in: a replica, a router."""

    def submit(self, request: Request) -> None: ...


class Due(simpy.Event):
    """A timeout that happens ahead of everything else at its instant, so that a pass at that instant sees the arrival."""

    def __init__(self, env: simpy.Environment, delay: float) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        env.schedule(self, URGENT, delay)


def make_requests(trace: Trace, config: SchedulerConfig) -> list[Request]:
    """One request a row, in trace order, its output capped by max_model_len."""
    interned: dict[tuple[object, ...], int] = {}
    requests = []
    rows = zip(
        trace.request_id,
        trace.arrival_s.tolist(),
        trace.prompt_tokens.tolist(),
        trace.output_tokens.tolist(),
        strict=True,
    )
    for index, (request_id, arrival_s, num_prompt_tokens, num_output_tokens) in enumerate(rows):
        max_tokens = max(0, min(num_output_tokens, config.max_model_len - num_prompt_tokens))
        known = trace.segments[index] if trace.segments else ((private_prompt_id(index), num_prompt_tokens),)
        segments = (*known, (output_id(index), num_output_tokens))
        request = Request(
            index=index,
            request_id=request_id,
            arrival_s=arrival_s,
            num_prompt_tokens=num_prompt_tokens,
            max_tokens=max_tokens,
            block_keys=BlockKeys(segments, config.block_size, interned),
            priority=int(trace.priority[index]) if trace.priority is not None else 0,
        )
        requests.append(request)
    return requests


def refused_by_front_end(request: Request, config: SchedulerConfig) -> str | None:
    """vLLM's own checks before a request reaches the engine: the reason, or None."""
    if request.num_prompt_tokens < 1:
        return "the prompt is empty"
    if request.num_prompt_tokens >= config.max_model_len:
        return (
            f"a prompt of {request.num_prompt_tokens} tokens leaves no room for output"
            f" within max_model_len {config.max_model_len}"
        )
    return "no output was asked for" if request.max_tokens < 1 else None


def never_fits(request: Request, config: SchedulerConfig) -> str | None:
    """Why a request would wait or recompute for ever in vLLM's bare scheduler, or None."""
    num_kv_tokens = request.num_prompt_tokens + request.max_tokens - 1
    if can_ever_fit(num_kv_tokens, config):
        return None
    return (
        f"{num_kv_tokens} tokens of prompt and output need more than the {config.num_usable_blocks} KV blocks there are"
    )


def reject_impossible(requests: Sequence[Request], config: SchedulerConfig, *, capacity_too: bool = True) -> None:
    """Mark requests that can never run; without `capacity_too`, only those that vLLM itself refuses."""
    for request in requests:
        reason = refused_by_front_end(request, config)
        if capacity_too:
            reason = reason or never_fits(request, config)
        if reason:
            request.status, request.rejected = RequestStatus.REJECTED, reason


def arrivals(
    env: simpy.Environment,
    requests: Sequence[Request],
    door: Door,
    on_progress: Callable[[int, int], None] | None = None,
) -> Generator[simpy.Event, Any, None]:
    """Bring requests to the door at their times, ahead of anything else that happens at the same instant."""
    for number, request in enumerate(requests):
        if request.arrival_s > env.now:
            yield Due(env, request.arrival_s - env.now)
        if request.status is not RequestStatus.REJECTED:
            door.submit(request)
        if on_progress:
            on_progress(number + 1, len(requests))
