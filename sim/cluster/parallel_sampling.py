"""A request that asks for several answers, before the engines, which have one for each answer.

Mirrors AsyncLLM.add_request and v1/engine/parallel_sampling.py: whoever takes the request makes the others of it at once. A server does so behind
whatever routes requests to servers, so that all answers come from one of them; before its own data-parallel engines, among which its
balancer shares them out one by one.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from sim.engine.request import Request
from sim.engine.request_source import RequestSource


class Answering(Protocol):
    """Whoever makes the requests for further answers."""

    def others(self, request: Request) -> Sequence[Request]: ...


class ParallelSampling:
    """Makes the requests for further answers, `one_by_one` where each is routed by itself, and knows when the last answer has come."""

    def __init__(self, source: Answering, *, one_by_one: bool) -> None:
        self.one_by_one = one_by_one
        self._source = source
        self._first: dict[Request, Request] = {}
        self._num_open: dict[Request, int] = {}

    @classmethod
    def of(cls, source: RequestSource, *, one_by_one: bool = False) -> "ParallelSampling | None":
        """None where each request asks for one answer."""
        return cls(source, one_by_one=one_by_one) if source.answer_rows else None

    def others(self, request: Request, *, is_awaited: bool) -> Sequence[Request]:
        """Those for a request that is sent now; somebody may be waiting for all its answers."""
        others = self._source.others(request)
        if others and is_awaited:
            self._num_open[request] = 1 + len(others)
            self._first |= dict.fromkeys(others, request)
        return others

    def forget(self, request: Request) -> None:
        """It was turned away with all its answers."""
        if self._num_open.pop(request, 0):
            self._first = {other: first for other, first in self._first.items() if first is not request}

    def whole(self, finished: Iterable[Request]) -> Iterator[Request]:
        """The requests that have all their answers with these."""
        for request in finished:
            first = self._first.pop(request, request)
            num_open = self._num_open.pop(first, 1) - 1
            if num_open:
                self._num_open[first] = num_open
            else:
                yield first
