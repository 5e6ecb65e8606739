"""The sessions of a trace: a turn is sent at its time, but not before the previous answer and the think time have passed."""

from collections import deque
from collections.abc import Callable
from math import inf

import simpy

from sim.cluster.arrivals import Process
from sim.cluster.clock import ARRIVAL, At
from sim.engine.request import Request
from sim.workload.conversations import session_numbers
from sim.workload.trace import Trace


class Conversations:
    """A process for each session with a turn that is due, and the turns that have become due meanwhile.

    A rejected turn is never submitted: the turn after it waits for the turn before it.
    """

    def __init__(self, env: simpy.Environment, trace: Trace, ask: Callable[[Request], simpy.Event]) -> None:
        assert trace.session_id is not None, "a trace with sessions"
        self._env = env
        self._ask = ask
        self._sessions: list[int] = session_numbers(trace.session_id).tolist()
        self._think_time_s: list[float] = (
            [0.0] * len(trace) if trace.think_time_s is None else trace.think_time_s.tolist()
        )
        self._due: dict[int, deque[Request]] = {}
        self._answered_s = [-inf] * (max(self._sessions) + 1)

    def arrive(self, request: Request) -> None:
        """A turn is due."""
        session = self._sessions[request.index]
        if session in self._due:
            self._due[session].append(request)
        else:
            self._due[session] = deque([request])
            self._env.process(self._talk(session, self._due[session]))

    def _talk(self, session: int, due: deque[Request]) -> Process:
        while due:
            request = due.popleft()
            earliest_s = self._answered_s[session] + self._think_time_s[request.index]
            if earliest_s > self._env.now:
                yield At(self._env, earliest_s, ARRIVAL)
            yield self._ask(request)
            self._answered_s[session] = self._env.now
        del self._due[session]
