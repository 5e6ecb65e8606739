"""Stages: each begins when all requests of the stage before have ended.

That is how inference-perf climbs a ladder of rates. Requests keep the gaps of the trace: a stage is shifted by the time that
passed between the last arrival of the one before it and the end of that one's last request.
"""

from collections.abc import Callable, Iterable

import simpy

from sim.cluster.arrivals import Process
from sim.cluster.clock import ARRIVAL, At
from sim.engine.request import Request


class Stages:
    """Submits requests stage by stage. They must be sent through `ask`, so that `_num_open` counts those that have not ended."""

    def __init__(self, env: simpy.Environment, stages: list[int], ask: Callable[[Request], simpy.Event]) -> None:
        self._env = env
        self._stages = stages
        self._ask = ask
        self._num_open = 0
        self._drained: simpy.Event | None = None

    def ask(self, request: Request) -> simpy.Event:
        """Send the request; the event happens when it has ended."""
        answer = self._ask(request)
        assert answer.callbacks is not None, "a request takes time"
        answer.callbacks.append(self._one_ended)
        return answer

    def arrivals(self, requests: Iterable[Request], send: Callable[[Request], object]) -> Process:
        """Send requests, given in order of arrival."""
        env, shift_s, last_s, stage = self._env, 0.0, 0.0, self._stages[0]
        for request in requests:
            if self._stages[request.index] != stage:
                if self._num_open:
                    self._drained = drained = env.event()
                    yield drained
                stage, shift_s = self._stages[request.index], max(0.0, env.now - last_s)
            last_s = request.arrival_s
            if last_s + shift_s > env.now:
                yield At(env, last_s + shift_s, ARRIVAL)
            self._num_open += 1
            send(request)

    def _one_ended(self, _answer: simpy.Event) -> None:
        self._num_open -= 1
        if not self._num_open and self._drained:
            self._drained.succeed()
            self._drained = None
