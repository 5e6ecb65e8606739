"""The progress of a request in tokens, computed from the number of the pass and of the batches that have come back.

`step` is the number of a pass, `num_collected` the number of the first batch that has not come back. These functions
change nothing.
"""

from sim.engine.request import Request, RequestStatus


def num_computed_tokens(request: Request, step: int) -> int:
    """KV positions scheduled before pass `step`."""
    if request.status is RequestStatus.PREFILLING:
        return request.num_computed_tokens
    return min(step - 1, request.last_pass) - request.epoch


def num_processed_tokens(request: Request, step: int, num_collected: int) -> int:
    """KV positions scheduled before pass `step` whose batch has come back."""
    computed = num_computed_tokens(request, step)
    if request.chunk_pass >= num_collected:
        return computed - request.num_chunk_tokens
    decodes = request.status is RequestStatus.DECODING or request.status is RequestStatus.ENDED
    is_in_flight = decodes and request.starved_pass != step - 1
    return computed - (is_in_flight and step - 1 >= num_collected)


def num_known_tokens(request: Request, num_collected: int) -> int:
    """Tokens of a decoding or ended request that have come back, its prompt included."""
    known = max(num_collected, request.first_decode_pass - 1) - request.epoch
    if request.starved_pass >= num_collected:  # in these passes the epoch has moved ahead of the batches
        known += request.starved_pass - max(num_collected, request.sampled_pass + 1) + 1
    return known


def num_returned_tokens(request: Request, num_collected: int) -> int:
    """Output tokens of a request, in any state, that have come back."""
    if request.status is RequestStatus.DECODING or request.status is RequestStatus.ENDED:
        return num_known_tokens(request, num_collected) - request.num_prompt_tokens
    has_one_in_flight = request.num_sampled_tokens > 0 and request.sampled_pass >= num_collected
    return request.num_sampled_tokens - has_one_in_flight


def num_scheduled_to(request: Request, step: int) -> int:
    """The context in tokens of a decode after pass `step`, which is done; 0 if the pass gave it no token."""
    ends = max(request.last_pass, request.wasted_pass)
    has_run = step <= ends and step not in (request.starved_pass, request.passed_over_pass)
    return step - request.epoch if has_run else 0


def num_hashed_tokens(request: Request, step: int, num_collected: int, scheduled_to: int) -> int:
    """Leading tokens of a request that may be registered in the prefix cache in pass `step`.

    vLLM registers tokens that were known when they were scheduled, or have become known since. `scheduled_to` is the
    context that pass `step` has scheduled, 0 before the request's turn.
    """
    if request.status is RequestStatus.PREFILLING:
        return max(request.num_computed_tokens, scheduled_to)
    known = num_known_tokens(request, num_collected)
    known_when_scheduled = request.num_computed_tokens
    if request.starved_pass == step - 2:  # then it had no token in flight when the last pass scheduled it
        known_when_scheduled = num_computed_tokens(request, step)
    return max(known_when_scheduled, known - 1, min(scheduled_to, known))
