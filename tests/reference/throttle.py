"""Prefills that wait for every n-th call, so that data-parallel ranks do them together, or for n steps since the last of them."""

from tests.reference.queues import WaitingQueue
from tests.reference.request import Request


class Throttle:
    """Whether a call defers prefills: not while the engine is short of room for those that wait.

    Names and conventions of the interval without ranks are those of vLLM 0.33's scheduler.
    """

    def __init__(self, local_prefill_interval: int = 1) -> None:
        self._local_prefill_interval = local_prefill_interval
        self._last_prefill_step = -local_prefill_interval
        self._num_executed_steps = 0
        self._is_capacity_bound = False
        self._had_to_wait: set[Request] = set()

    def forget(self, request: Request) -> None:
        """The request has been admitted; if it is preempted, it waits anew."""
        self._had_to_wait.discard(request)

    def passed_over(self, request: Request) -> None:
        """The request waits for something of its own, not for room."""
        self._had_to_wait.add(request)

    def note(self, *queues: WaitingQueue) -> None:
        """A call that deferred nothing has ended with these still waiting."""
        waiting = [request for queue in queues for request in queue.in_order()]
        self._is_capacity_bound = any(request not in self._had_to_wait for request in waiting)

    def executed(self, num_tokens: int, *, prefilled: bool) -> None:
        """A call has ended, with so many tokens; some of them of a prompt that was not at its last one."""
        if num_tokens > 0:
            self._num_executed_steps += 1
        if prefilled:
            self._last_prefill_step = self._num_executed_steps

    def defers(self, running: list[Request], unfinished_prefills: list[Request], *, is_throttled: bool) -> bool:
        """Whether a call defers prefills: it is not their turn, somebody decodes and nobody waits for room."""
        num_steps = self._num_executed_steps + 1 - self._last_prefill_step
        if not is_throttled and num_steps >= self._local_prefill_interval:
            return False
        return not self._is_capacity_bound and any(request not in unfinished_prefills for request in running)
