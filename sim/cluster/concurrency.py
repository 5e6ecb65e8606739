"""Limits on requests in flight, and those who wait in line for a place.

`--max-concurrency` of `vllm bench serve` sleeps until a request's time, then waits for its semaphore: first come, first served. Its clock
starts when the request is sent, so that no latency includes the time in the queue. A trace may have limits of its own, as the workers of
inference-perf do: a worker takes a request as soon as it has a place, and keeps the place while the request waits for the turn before it.
"""

from collections import deque
from collections.abc import Callable

import simpy
from simpy.events import NORMAL

from sim.cluster.arrivals import Process
from sim.cluster.clock import ASK, call_at
from sim.engine.request import Request
from sim.workload.trace import Trace

Send = Callable[[Request], object]


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


class Lines:
    """The limits of a trace: requests take a place of their line `before` they are sent, and leave it when what they were sent with has ended."""

    def __init__(self, env: simpy.Environment, trace: Trace, ask: Callable[[Request], simpy.Event]) -> None:
        assert trace.max_concurrency is not None, "a trace with limits"
        self._env = env
        self._ask = ask
        self._line_of: list[int] = trace.lines.tolist()
        self._num_free = dict(zip(self._line_of, trace.max_concurrency.tolist(), strict=True))
        self._waiting: dict[int, deque[Request]] = {line: deque() for line in self._num_free}
        self._send: Send = ask

    def before(self, send: Send) -> Send:
        """Whatever sends a request, by `ask` in the end, when it has a place."""
        self._send = send
        return self._arrive

    def ask(self, request: Request) -> simpy.Event:
        """Send the request; the event happens when it has ended."""
        answer = self._ask(request)
        assert answer.callbacks is not None, "a request takes time"
        answer.callbacks.append(lambda _: self._leave(self._line_of[request.index]))
        return answer

    def _arrive(self, request: Request) -> None:
        line = self._line_of[request.index]
        if self._num_free[line]:
            self._num_free[line] -= 1
            self._send(request)
        else:
            self._waiting[line].append(request)

    def _leave(self, line: int) -> None:
        """The next in line goes when whoever waited for the answer has acted on it."""
        if not self._waiting[line]:
            self._num_free[line] += 1
            return
        request = self._waiting[line].popleft()
        call_at(self._env, self._env.now, NORMAL, lambda: self._send(request))


class Holding:
    """Requests that are in flight for their clients some time after the answer: a tool runs, and what waits for the answer waits for it."""

    def __init__(self, env: simpy.Environment, hold_s: list[float], ask: Callable[[Request], simpy.Event]) -> None:
        self._env = env
        self._hold_s = hold_s
        self._ask = ask

    def ask(self, request: Request) -> simpy.Event:
        """Send the request; the event happens when its time after the answer has passed."""
        answer, hold_s = self._ask(request), self._hold_s[request.index]
        if not hold_s:
            return answer
        ended = self._env.event()
        assert answer.callbacks is not None, "a request takes time"
        answer.callbacks.append(lambda _: call_at(self._env, self._env.now + hold_s, ASK, ended.succeed))
        return ended
