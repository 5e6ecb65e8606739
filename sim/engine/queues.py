"""Queues of waiting requests, in the order of one scheduling policy each.

The head is `queue[0]`. `put_back` returns a preempted request to the place that its policy has for it, `put_back_skipped`
the requests that a pass has skipped, given in the order in which it skipped them.
"""

import bisect
import heapq
from collections import deque
from collections.abc import Collection, Sequence

from sim.engine.fair_share import FairShareQueue
from sim.engine.request import Request
from sim.errors import EngineCrashError


class FcfsQueue(deque[Request]):
    """First come, first served; a preempted request goes to the front."""

    def add(self, request: Request) -> None:
        self.append(request)

    def put_back(self, request: Request) -> None:
        self.appendleft(request)

    def pop_first(self) -> Request:
        return self.popleft()

    def put_back_skipped(self, requests: Sequence[Request]) -> None:
        """In reversed order, as those versions of vLLM did that skipped requests."""
        self.extendleft(requests)

    def remove_all(self, requests: Collection[Request]) -> None:
        for request in requests:
            self.remove(request)


class PriorityQueue(list[Request]):
    """Smallest (priority, arrival, id) first; ids compare as strings, as in vLLM."""

    def add(self, request: Request) -> None:
        bisect.insort(self, request, key=rank)

    def put_back(self, request: Request) -> None:
        self.add(request)

    def pop_first(self) -> Request:
        return self.pop(0)

    def put_back_skipped(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.put_back(request)

    def remove_all(self, requests: Collection[Request]) -> None:
        for request in requests:
            self.remove(request)


class HeapQueue(PriorityQueue):
    """A PriorityQueue that crashes where vLLM's did before 0.12: its heap compared two requests, which have no order.

    `_heap` holds the same requests as vLLM's heap did, in the same places, so that the same pairs are compared.
    """

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[tuple[int, float, Request]] = []

    def add(self, request: Request) -> None:
        super().add(request)
        try:
            heapq.heappush(self._heap, (request.priority, request.arrival_s, request))
        except TypeError:
            raise self._crash() from None

    def pop_first(self) -> Request:
        try:
            heapq.heappop(self._heap)
        except TypeError:
            raise self._crash() from None
        return super().pop_first()

    def put_back_skipped(self, requests: Sequence[Request]) -> None:
        """By way of a heap of the skipped requests alone, in which vLLM kept them."""
        skipped = HeapQueue()
        for request in requests:
            skipped.add(request)
        while skipped:
            self.add(skipped.pop_first())

    def remove_all(self, requests: Collection[Request]) -> None:
        super().remove_all(requests)
        self._heap = [entry for entry in self._heap if entry[2] not in requests]
        try:
            heapq.heapify(self._heap)
        except TypeError:
            raise self._crash() from None

    def _crash(self) -> EngineCrashError:
        return EngineCrashError(
            f"the engine of vLLM before 0.12.0 crashes in this run ({len(self)} requests wait): with scheduling_policy"
            " priority it cannot order two that have the same priority and time of arrival; set arrivals apart, or choose"
            " fcfs or a newer vllm_version."
        )


WaitingQueue = FcfsQueue | PriorityQueue | FairShareQueue


def rank(request: Request) -> tuple[int, float, str]:
    return (request.priority, request.arrival_s, request.request_id)
