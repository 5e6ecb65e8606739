"""Prefills that wait for every n-th call, so that data-parallel ranks do them together."""

from tests.reference.queues import WaitingQueue
from tests.reference.request import Request


class Throttle:
    """Whether a throttled call defers prefills: not while the engine is short of room for those that wait."""

    def __init__(self) -> None:
        self._is_capacity_bound = False
        self._had_to_wait: set[Request] = set()

    def forget(self, request: Request) -> None:
        """The request has been queued anew."""
        self._had_to_wait.discard(request)

    def passed_over(self, request: Request) -> None:
        """The request waits for something of its own, not for room."""
        self._had_to_wait.add(request)

    def note(self, *queues: WaitingQueue) -> None:
        """A call that deferred nothing has ended with these still waiting."""
        waiting = [request for queue in queues for request in queue.in_order()]
        self._is_capacity_bound = any(request not in self._had_to_wait for request in waiting)

    def defers(self, running: list[Request], unfinished_prefills: list[Request]) -> bool:
        """Whether prefills are deferred in a throttled call: somebody decodes and nobody waits for room."""
        return not self._is_capacity_bound and any(request not in unfinished_prefills for request in running)
