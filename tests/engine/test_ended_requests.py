"""Outcomes of a stream: a row a request, and of one that asks for several answers when all have ended."""

from sim.engine.ended_requests import EndedRequests
from sim.engine.request import Request


def answer(index: int, first_token_s: float, num_cached_tokens: int) -> Request:
    request = Request(index, f"r{index}", 2.0, 8, 3)
    request.first_scheduled_s, request.first_token_s = first_token_s - 1, first_token_s
    request.num_cached_tokens, request.num_preemptions = num_cached_tokens, 1
    return request


def test_answers_are_one_request_however_they_end() -> None:
    """The first one ends last, as it was preempted: what was cached is still what it found, its first token any answer's first."""
    ended = EndedRequests()
    first, other, alone = answer(0, 5.0, 0), answer(9, 4.0, 4), answer(1, 3.0, 2)
    ended.expect(first, [other])
    ended.write(other, 3, 7.0, 1)
    ended.write(alone, 3, 6.0, 0)
    requests, replica = ended.take()
    assert (requests.finish_s.tolist(), replica.tolist()) == ([6.0], [0])
    ended.write(first, 3, 9.0, 1)
    requests, replica = ended.take()
    assert (requests.finish_s.tolist(), replica.tolist()) == ([9.0], [1])
    assert (requests.num_cached_tokens.tolist(), requests.first_token_s.tolist()) == ([0], [4.0])
    assert (requests.generated_tokens.tolist(), requests.num_preemptions.tolist()) == ([6], [2])
    assert not len(ended.take().requests)
