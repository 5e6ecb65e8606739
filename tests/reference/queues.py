"""The order in which waiting requests are served."""

import bisect
import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Protocol

from sim.errors import EngineCrashError
from sim.specs.engine import Policy
from tests.reference.request import Request


class WaitingQueue(Protocol):
    """`put_back` returns a preempted or passed-over request to where its policy wants it served next.

    `put_back_skipped` does so for those that a pass has skipped, given in the order in which they were.
    """

    def __len__(self) -> int: ...
    def add(self, request: Request) -> None: ...
    def put_back(self, request: Request) -> None: ...
    def peek(self) -> Request: ...
    def pop(self) -> Request: ...
    def put_back_skipped(self, requests: Sequence[Request]) -> None: ...
    def remove(self, requests: Collection[Request]) -> None: ...
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

    def put_back_skipped(self, requests: Sequence[Request]) -> None:
        """As vLLM does while anybody is skipped, the last one goes to the very front."""
        self._requests.extendleft(requests)

    def remove(self, requests: Collection[Request]) -> None:
        self._requests = deque(request for request in self._requests if request not in requests)

    def in_order(self) -> Iterable[Request]:
        return self._requests


class PriorityQueue:
    """The smallest rank first: (priority, arrival, id) in vLLM, where ids compare as strings."""

    def __init__(self, rank: Callable[[Request], Any] | None = None) -> None:
        self._requests: list[Request] = []
        self._rank = rank or urgency

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request) -> None:
        bisect.insort(self._requests, request, key=self._rank)

    def put_back(self, request: Request) -> None:
        self.add(request)

    def peek(self) -> Request:
        return self._requests[0]

    def pop(self) -> Request:
        return self._requests.pop(0)

    def put_back_skipped(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.add(request)

    def remove(self, requests: Collection[Request]) -> None:
        self._requests = [request for request in self._requests if request not in requests]

    def in_order(self) -> Iterable[Request]:
        return self._requests


class Entry:
    """A place in the heap of tuples that vLLM kept before 0.12, whose last member, the request, has no order."""

    def __init__(self, request: Request) -> None:
        self.request = request

    def __lt__(self, other: "Entry") -> bool:
        mine, theirs = self.request, other.request
        if (mine.priority, mine.arrival_s) == (theirs.priority, theirs.arrival_s):
            raise EngineCrashError(f"{mine.request_id} and {theirs.request_id} cannot be ordered")
        return urgency(mine) < urgency(theirs)


class HeapQueue:
    """Smallest (priority, arrival) first. vLLM dies when it compares two requests that are equal in both."""

    def __init__(self) -> None:
        self._heap: list[Entry] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request: Request) -> None:
        heapq.heappush(self._heap, Entry(request))

    def put_back(self, request: Request) -> None:
        self.add(request)

    def peek(self) -> Request:
        return self._heap[0].request

    def pop(self) -> Request:
        return heapq.heappop(self._heap).request

    def put_back_skipped(self, requests: Sequence[Request]) -> None:
        """vLLM keeps them in a heap of their own until then."""
        skipped = HeapQueue()
        for request in requests:
            skipped.add(request)
        while len(skipped):
            self.add(skipped.pop())

    def remove(self, requests: Collection[Request]) -> None:
        self._heap = [entry for entry in self._heap if entry.request not in requests]
        heapq.heapify(self._heap)

    def in_order(self) -> Iterable[Request]:
        return sorted((entry.request for entry in self._heap), key=urgency)


def urgency(request: Request) -> tuple[int, float, str]:
    return (request.priority, request.arrival_s, request.request_id)


def _length(request: Request) -> tuple[int, float, int]:
    return (request.num_prompt_tokens + request.max_tokens, request.arrival_s, request.index)


class FairShareQueue:
    """Virtual token counters: the clients' counters, who waits in order of arrival, and whose request was admitted last."""

    def __init__(self) -> None:
        self.counters: dict[str, int] = {}
        self.last_admitted = ""
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request) -> None:
        """A client with nobody in line is lifted to the least of those who wait, or to who was admitted last."""
        clients = {other.client for other in self._requests}
        if request.client not in clients:
            level = min((self.counters[client] for client in clients), default=self.counters.get(self.last_admitted, 0))
            self.counters[request.client] = max(level, self.counters.get(request.client, 0))
        self.put_back(request)

    def put_back(self, request: Request) -> None:
        self._requests.append(request)

    def peek(self) -> Request:
        return next(iter(self.in_order()))

    def pop(self) -> Request:
        first = self.peek()
        self._requests.remove(first)
        return first

    def put_back_skipped(self, requests: Sequence[Request]) -> None:
        self._requests.extend(requests)

    def remove(self, requests: Collection[Request]) -> None:
        self._requests = [request for request in self._requests if request not in requests]

    def in_order(self) -> Iterable[Request]:
        return sorted(self._requests, key=lambda one: (self.counters[one.client], one.arrival_s, one.index))


def waiting_queue(policy: Policy, *, orders_ties: bool) -> WaitingQueue:
    if policy == "fcfs":
        return FcfsQueue()
    if policy == "sjf":
        return PriorityQueue(_length)
    if policy == "fair_share":
        return FairShareQueue()
    return PriorityQueue() if orders_ties else HeapQueue()
