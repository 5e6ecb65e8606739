"""The order in which waiting requests are served.

The first is `queue[0]`; `put_back` returns a preempted request to where its policy wants it served next.
"""

import bisect
from collections import deque

from sim.serving.request import Request
from sim.specs.engine import Policy


class FcfsQueue(deque[Request]):
    """First come, first served; who is put back goes to the front."""

    def add(self, request: Request) -> None:
        self.append(request)

    def put_back(self, request: Request) -> None:
        self.appendleft(request)

    def pop_first(self) -> Request:
        return self.popleft()


class PriorityQueue(list[Request]):
    """Smallest (priority, arrival, id) first; ids compare as strings, as in vLLM."""

    def add(self, request: Request) -> None:
        bisect.insort(self, request, key=_rank)

    def put_back(self, request: Request) -> None:
        self.add(request)

    def pop_first(self) -> Request:
        return self.pop(0)


WaitingQueue = FcfsQueue | PriorityQueue


def waiting_queue(policy: Policy) -> WaitingQueue:
    return FcfsQueue() if policy == "fcfs" else PriorityQueue()


def _rank(request: Request) -> tuple[int, float, str]:
    return (request.priority, request.arrival_s, request.request_id)
