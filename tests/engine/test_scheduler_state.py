"""A request's way through the scheduler's state, one transition at a time."""

from sim.engine.request import Request, RequestStatus
from sim.engine.scheduler_state import SchedulerState
from tests.makers import make_config


def started(prompt: int, outputs: int) -> tuple[SchedulerState, Request]:
    """A request that has its blocks and has computed nothing; blocks of 4 tokens."""
    state, request = SchedulerState(make_config(num_gpu_blocks=11)), Request(0, "A", 0.0, prompt, outputs)
    state.kv.pool.take(-(-prompt // 4))
    state.start(request, 0)
    return state, request


def test_a_request_that_starts_runs_and_prefills() -> None:
    """It counts as running from the pass that admits it."""
    state, request = started(prompt=8, outputs=2)
    assert request.status is RequestStatus.PREFILLING
    assert (state.num_running, list(state.prefills), state.decodes.count) == (1, [request], 0)


def test_a_whole_prompt_samples_a_token_and_decodes() -> None:
    """Its context after pass s is s - epoch; of two tokens, the second and last is sampled in the next pass."""
    state, request = started(prompt=8, outputs=2)
    state.compute(request, 8, 1, last_pass=0)
    state.finish_prefill(request, 0)
    assert (state.num_running, list(state.prefills), state.decodes.count) == (1, [], 1)
    assert (state.decodes.context_sum(1), state.decodes.ends.next_pass) == (9, 1)


def test_who_has_ended_keeps_seat_and_blocks_until_the_last_token_is_back() -> None:
    """Of 10 blocks the prompt holds 2; they come free with the batch that brings the token."""
    state, request = started(prompt=8, outputs=1)
    state.compute(request, 8, 1, last_pass=0)
    state.finish_prefill(request, 0)
    assert (state.num_running, state.num_free_blocks, state.ended) == (1, 8, {0: [request]})
    assert state.release_ended(0) == [request]
    assert (state.num_running, state.num_free_blocks, state.has_requests) == (0, 10, False)


def test_who_is_preempted_waits_with_what_was_sampled() -> None:
    """Before pass 2 it has two tokens of output, the second not yet fed; 9 tokens computed held three blocks."""
    state, request = started(prompt=8, outputs=5)
    state.compute(request, 8, 1, last_pass=0)
    state.finish_prefill(request, 0)
    state.kv.pool.take(1)
    state.num_collected = 2
    state.preempt(request, 2, 0)
    assert (request.status, request.num_tokens) == (RequestStatus.PREEMPTED, 10)
    assert (state.num_running, list(state.waiting), state.num_free_blocks) == (0, [request], 10)
    assert not state.admits_nobody


def test_who_starves_does_everything_a_pass_later() -> None:
    """Its third and last token would have come of pass 2, and comes of pass 3."""
    state, request = started(prompt=8, outputs=3)
    state.compute(request, 8, 1, last_pass=0)
    state.finish_prefill(request, 0)
    state.starve(request, 1)
    state.decodes.enter(request)
    assert (request.last_pass, state.decodes.context_sum(2)) == (3, 9)
