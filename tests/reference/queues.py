"""The order in which waiting requests are served."""

import bisect
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from sim.specs.engine import Policy
from tests.reference.request import Request


class WaitingQueue(Protocol):
    """`put_back` returns a preempted or passed-over request to where its policy wants it served next."""

    def __len__(self) -> int: ...
    def add(self, request: Request) -> None: ...
    def put_back(self, request: Request) -> None: ...
    def peek(self) -> Request: ...
    def pop(self) -> Request: ...
    def remove(self, request: Request) -> None: ...
    def in_order(self) -> Iterable[Request]: ...


class FcfsQueue:
    """First come, first served; who is put back goes to the front."""

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request) -> None:
        self._requests.append(request)

    def put_back(self, request: Request) -> None:
        self._requests.appendleft(request)

    def peek(self) -> Request:
        return self._requests[0]

    def pop(self) -> Request:
        return self._requests.popleft()

    def remove(self, request: Request) -> None:
        self._requests.remove(request)

    def in_order(self) -> Iterable[Request]:
        return self._requests


class PriorityQueue:
    """Smallest (priority, arrival, id) first; ids compare as strings, as in vLLM."""

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request) -> None:
        bisect.insort(self._requests, request, key=_rank)

    def put_back(self, request: Request) -> None:
        self.add(request)

    def peek(self) -> Request:
        return self._requests[0]

    def pop(self) -> Request:
        return self._requests.pop(0)

    def remove(self, request: Request) -> None:
        self._requests.remove(request)

    def in_order(self) -> Iterable[Request]:
        return self._requests


def _rank(request: Request) -> tuple[int, float, str]:
    return (request.priority, request.arrival_s, request.request_id)


def waiting_queue(policy: Policy) -> WaitingQueue:
    return FcfsQueue() if policy == "fcfs" else PriorityQueue()
