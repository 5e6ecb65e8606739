"""Those who send requests to naive replicas: each request of a trace is a process that waits for whatever it has to wait for."""

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import simpy

from sim.workload.trace import Trace
from tests.reference.arrivals import ANSWERED, Due
from tests.reference.request import Request

Process = Generator[simpy.Event, Any, None]


class Senders:
    """What has been sent, what has ended and when; at most `limit` in flight."""

    def __init__(self, env: simpy.Environment, submit: Callable[[Request], None], limit: int | None = None) -> None:
        self._env = env
        self._submit = submit
        self._limit = limit
        self._in_flight = 0
        self._line: list[simpy.Event] = []
        self._in_line: dict[tuple[int, int], list[simpy.Event]] = {}
        self._places_taken: dict[tuple[int, int], int] = {}
        self.hold_s: list[float] | None = None
        self._tokens_back: dict[int, simpy.Event] = {}
        self.num_arrived = 0
        self.ended: dict[int, simpy.Event] = {}
        self.ended_s: dict[int, float] = {}

    def expect(self, requests: Sequence[Request]) -> None:
        self.ended = {request.index: self._env.event() for request in requests}

    def tokens_back(self, request: Request) -> None:
        """A replica has finished with a request; whoever sent it acts on that in the order in which answers came."""
        acts = Due(self._env, 0, ANSWERED)
        assert acts.callbacks is not None, "it has not happened yet"
        acts.callbacks.append(self._tokens_back[request.index].trigger)

    def send(self, request: Request) -> Process:
        """In flight as soon as there is room, first come, first served, until whoever sent it acts on its end."""
        if self._limit is not None and self._in_flight == self._limit:
            self._line.append(self._env.event())
            yield self._line[-1]
        self._in_flight += 1
        request.arrival_s = self._env.now
        self._tokens_back[request.index] = self._env.event()
        self._submit(request)
        yield self._tokens_back[request.index]
        if self.hold_s and self.hold_s[request.index]:
            yield Due(self._env, self.hold_s[request.index], ANSWERED)
        self._in_flight -= 1
        if self._line:
            self._line.pop(0).succeed()
        self.ended_s[request.index] = self._env.now
        self.ended[request.index].succeed()

    # -- the trace's own times ---------------------------------------------------------------------------------------

    def replay(self, trace: Trace, requests: Sequence[Request], *, open_loop: bool) -> Process:
        """Each request in its time: that of the trace, later by as much as the stages before it took longer."""
        shift_s, last_s = 0.0, 0.0
        if trace.hold_s is not None and not open_loop:
            self.hold_s = trace.hold_s.tolist()
        stages = [0] * len(trace) if trace.stage is None or open_loop else trace.stage.tolist()
        for number, request in enumerate(requests):
            before = requests[:number]
            if before and stages[before[-1].index] != stages[request.index]:
                for earlier in before:
                    if not self.ended[earlier.index].processed:
                        yield self.ended[earlier.index]
                shift_s = max(0.0, self._env.now - last_s)
            last_s = request.arrival_s
            if last_s + shift_s > self._env.now:
                yield Due(self._env, last_s + shift_s - self._env.now)
            previous = None if open_loop else _turn_before(trace, before, request)
            if trace.max_concurrency is None or open_loop:
                self._env.process(self._turn(trace, request, previous))
            else:
                self._env.process(self._with_place(trace, request, previous, int(trace.max_concurrency[request.index])))

    def _with_place(self, trace: Trace, request: Request, previous: Request | None, limit: int) -> Process:
        """A turn that waits for a place in its line first, and keeps it until it has ended."""
        stage = 0 if trace.stage is None else int(trace.stage[request.index])
        line = stage, 0 if trace.line is None else int(trace.line[request.index])
        waiting = self._in_line.setdefault(line, [])
        if self._places_taken.get(line, 0) == limit:
            waiting.append(self._env.event())
            yield waiting[-1]
        else:
            self._places_taken[line] = self._places_taken.get(line, 0) + 1
        yield from self._turn(trace, request, previous)
        if waiting:
            waiting.pop(0).succeed()
        else:
            self._places_taken[line] -= 1

    def _turn(self, trace: Trace, request: Request, previous: Request | None) -> Process:
        """Wait for the answer before, think, send."""
        if previous is not None:
            if not self.ended[previous.index].triggered:
                yield self.ended[previous.index]
            think_s = 0.0 if trace.think_time_s is None else float(trace.think_time_s[request.index])
            due_s = self.ended_s[previous.index] + think_s
            if due_s > self._env.now:
                yield Due(self._env, due_s - self._env.now)
        yield from self.send(request)

    # -- users -------------------------------------------------------------------------------------------------------

    def user(self, trace: Trace, work: Iterator[list[Request]], think_time_s: float) -> Process:
        """A session, or a request, after the other."""
        self.hold_s = None if trace.hold_s is None else trace.hold_s.tolist()
        for turns in work:
            for request, following in zip(turns, [*turns[1:], None], strict=True):
                yield from self.send(request)
                pause_s = think_time_s
                if following and trace.think_time_s is not None:
                    pause_s = float(trace.think_time_s[following.index])
                if pause_s:
                    yield Due(self._env, pause_s)


def _turn_before(trace: Trace, before: Sequence[Request], request: Request) -> Request | None:
    sessions = trace.session_id
    if sessions is None:
        return None
    return next((turn for turn in reversed(before) if sessions[turn.index] == sessions[request.index]), None)


def sessions_of(trace: Trace, requests: Sequence[Request]) -> list[list[Request]]:
    """The requests by session, sessions as they begin; each by itself where there are none."""
    if trace.session_id is None:
        return [[request] for request in requests]
    names = dict.fromkeys(trace.session_id[request.index] for request in requests)
    return [[request for request in requests if trace.session_id[request.index] == name] for name in names]
