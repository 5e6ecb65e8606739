"""Who sends the requests: the trace at its own times, its sessions, a limited number at a time, or a population of users."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, get_args

import simpy

from sim.cluster.arrivals import Process, arrivals
from sim.cluster.concurrency import Holding, Lines, MaxConcurrency
from sim.cluster.conversations import Conversations
from sim.cluster.front_end import Clock, FrontEnd, SeenLate
from sim.cluster.records import ClusterRecords
from sim.cluster.stages import Stages
from sim.cluster.users import NO_USERS, Users, start_users
from sim.engine.request import Request
from sim.errors import ConfigError, check_choice
from sim.workload.columns import MAX_TOKENS
from sim.workload.trace import Trace

Ask = Callable[[Request], simpy.Event]
"""Sends a request; the event happens when it has ended."""
Arriving = Callable[[Iterable[Request], Callable[[Request], object]], Process]
"""Passes requests on at their times."""


class Clients(NamedTuple):
    """How requests are sent: `Users` who take them in order, or at the trace's times, at most `max_concurrency` in flight.

    Unless the loop is open, a turn of a session waits for the answer to the turn before it, a stage until the stage
    before has drained, and requests of a line for a place in it. By the client's `clock` answers end as clients see them, and who waits for one waits for that. `check` raises
    ConfigError for options that contradict each other.
    """

    users: Users | None = None
    max_concurrency: int | None = None
    open_loop: bool = False
    clock: Clock = "engine"

    def check(self, trace: Trace) -> "Clients":
        """Returns itself if the options fit that trace."""
        check_choice("`clock`", self.clock, get_args(Clock))
        if self.max_concurrency is not None and not 1 <= self.max_concurrency <= MAX_TOKENS:
            raise ConfigError(f"`max_concurrency` must be from 1 to {MAX_TOKENS:,}, got {self.max_concurrency}.")
        others = {
            "max_concurrency": self.max_concurrency,
            "open_loop": self.open_loop,
            "a `stage` column": trace.stage,
            "a `max_concurrency` column": trace.max_concurrency,
        }
        given = next((name for name, other in others.items() if other is not None and other is not False), None)
        if self.users and given:
            raise ConfigError(
                f"users send a request when the last is answered, so that {given} means nothing; leave one of them out."
            )
        return self

    def wait_for_answers(self, trace: Trace) -> bool:
        """Whether the time at which a request is sent depends on when others end."""
        waiting = (trace.session_id, trace.stage, trace.max_concurrency)
        is_closed = any(column is not None for column in waiting) and not self.open_loop
        return self.users is not None or self.max_concurrency is not None or is_closed

    def start(
        self, env: simpy.Environment, trace: Trace, requests: Iterable[Request], ask: Ask, front_end: FrontEnd
    ) -> None:
        """Begin to send the requests of a trace, in order of arrival."""
        if self.clock == "client":
            ask = SeenLate(env, front_end, ask).ask
        if trace.hold_s is not None and not self.open_loop:
            ask = Holding(env, trace.hold_s.tolist(), ask).ask
        if self.users:
            start_users(env, self.users, trace, requests, ask)
            return
        if self.max_concurrency is not None:
            ask = MaxConcurrency(env, self.max_concurrency, ask).ask
        arriving: Arriving = partial(arrivals, env)
        if trace.stage is not None and not self.open_loop:
            stages = Stages(env, trace.stage.tolist(), ask)
            ask, arriving = stages.ask, stages.arrivals
        lines = None if trace.max_concurrency is None or self.open_loop else Lines(env, trace, ask)
        ask = lines.ask if lines else ask
        has_turns = trace.session_id is not None and not self.open_loop
        send = Conversations(env, trace, ask).arrive if has_turns else ask
        env.process(arriving(requests, lines.before(send) if lines else send))

    def seen(self, run: ClusterRecords, front_end: FrontEnd) -> ClusterRecords:
        """A run by the clock that is asked for."""
        return front_end.seen(run) if self.clock == "client" else run

    def to_json(self) -> dict[str, Any]:
        """The keys under which summaries say who sent the requests."""
        users = self.users.to_json() if self.users else NO_USERS
        clock = {"clock": self.clock} if self.clock == "client" else {}
        return {"max_concurrency": self.max_concurrency, "open_loop": self.open_loop, **users, **clock}


AT_THEIR_TIMES = Clients()
