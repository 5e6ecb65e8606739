"""`--max-concurrency` of `vllm bench serve`: a limit on requests in flight, and a queue of those that are due.

The bench sleeps until a request's time, then waits for its semaphore: first come, first served. Its clock starts when the
request is sent, so that no latency includes the time in the queue.
"""

from collections import deque
from collections.abc import Callable

import simpy

from sim.cluster.arrivals import Process
from sim.engine.request import Request


class MaxConcurrency:
    """Passes at most `limit` requests on at a time."""

    def __init__(self, env: simpy.Environment, limit: int, ask: Callable[[Request], simpy.Event]) -> None:
        self._env = env
        self._num_free = limit
        self._ask = ask
        self._line: deque[simpy.Event] = deque()

    def ask(self, request: Request) -> simpy.Event:
        """Send the request when fewer than `limit` are in flight; the event happens when it has ended."""
        return self._env.process(self._send(request))

    def _send(self, request: Request) -> Process:
        if self._num_free:
            self._num_free -= 1
        else:
            turn = self._env.event()
            self._line.append(turn)
            yield turn
        yield self._ask(request)
        if self._line:
            self._line.popleft().succeed()
        else:
            self._num_free += 1
