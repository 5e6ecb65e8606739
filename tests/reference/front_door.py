"""Requests of the naive engine from a trace."""

import numpy as np

from sim.engine.config import SchedulerConfig
from sim.engine.content import output_id, private_prompt_id
from sim.engine.request_source import rejections
from sim.workload.trace import Trace
from tests.reference.content import BlockKeys
from tests.reference.request import Request


def make_requests(trace: Trace, config: SchedulerConfig, *, capacity_too: bool = True) -> list[Request]:
    """One request a row, in trace order, its output capped by max_model_len; what can never run has its reason."""
    interned: dict[tuple[object, ...], int] = {}
    requests = []
    for index, request_id in enumerate(trace.request_id):
        num_prompt_tokens, num_output_tokens = int(trace.prompt_tokens[index]), int(trace.output_tokens[index])
        known = trace.segments[index] if trace.segments else ((private_prompt_id(index), num_prompt_tokens),)
        segments = (*known, (output_id(index), num_output_tokens))
        request = Request(
            index=index,
            request_id=request_id,
            arrival_s=float(trace.arrival_s[index]),
            num_prompt_tokens=num_prompt_tokens,
            max_tokens=max(0, min(num_output_tokens, config.max_model_len - num_prompt_tokens)),
            block_keys=BlockKeys(segments, config.block_size, interned),
            priority=int(trace.priority[index]) if trace.priority is not None else 0,
        )
        requests.append(request)
    max_tokens = np.array([request.max_tokens for request in requests])
    for row, reason in rejections(trace, max_tokens, config, capacity_too=capacity_too).items():
        requests[row].rejected = reason
    return requests


def let_in(requests: list[Request]) -> list[Request]:
    """Those that are not rejected."""
    return [request for request in requests if request.rejected is None]
