"""A closed population: users who send a request, wait for its answer, think, and send the next."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import simpy

from sim.cluster.arrivals import Process
from sim.cluster.clock import ARRIVAL, At
from sim.engine.request import Request
from sim.errors import ConfigError, nearest
from sim.workload.columns import MAX_SECONDS, MAX_TOKENS
from sim.workload.conversations import session_numbers
from sim.workload.trace import Trace

ThinkTime = Literal["fixed", "exponential"]


class Users(NamedTuple):
    """`num_users` users take requests, or whole sessions, in the order of the trace; its arrival times are ignored.

    `think_time_s` passes between an answer and the user's next request: always, or on average where it is exponential.
    """

    num_users: int
    think_time_s: float = 0.0
    think_time: ThinkTime = "fixed"
    seed: int = 0

    def check(self) -> "Users":
        """Returns itself; raises ConfigError for values out of range."""
        if not 1 <= self.num_users <= MAX_TOKENS:
            raise ConfigError(f"`users` must be from 1 to {MAX_TOKENS:,}, got {self.num_users}.")
        if not 0 <= self.think_time_s <= MAX_SECONDS:
            raise ConfigError(f"the think time must be from 0 to {MAX_SECONDS:.0e} s, got {self.think_time_s}.")
        return self

    def pauses_s(self, number: int) -> Iterator[float]:
        """The think times of one user, one after the other."""
        if self.think_time == "fixed" or self.think_time_s == 0:
            return iter(lambda: self.think_time_s, None)
        rng = np.random.default_rng([self.seed, number])
        return iter(lambda: rng.exponential(self.think_time_s), None)

    def to_json(self) -> dict[str, Any]:
        return {"users": self.num_users, "think_time_s": self.think_time_s, "think_time": self.think_time}


NO_USERS = {"users": None, "think_time_s": None, "think_time": None}


def parse_users(count: int | None, think_time: float | str | None, *, seed: int = 0) -> Users | None:
    """Users with a think time such as 5 or `exponential:5` in seconds. Raises ConfigError for anything else."""
    if count is None:
        if think_time is not None:
            raise ConfigError("a think time is that of users; say how many with `users` (--users).")
        return None
    kind, _, mean = str(think_time or 0).rpartition(":")
    try:
        seconds = float(mean)
    except ValueError:
        seconds = math.nan
    if math.isnan(seconds) or kind not in {"", *get_args(ThinkTime)}:
        hint = nearest(kind, get_args(ThinkTime))
        raise ConfigError(f"a think time must be seconds such as 5 or exponential:5, got {think_time!r}.{hint}")
    return Users(count, seconds, "exponential" if kind == "exponential" else "fixed", seed).check()


def require_no_rate(rate_scale: float, request_rate: float | None) -> None:
    """Raises ConfigError for a request rate together with users, who ignore the trace's times."""
    if rate_scale != 1.0 or request_rate is not None:
        given = "rate_scale" if request_rate is None else "request_rate"
        raise ConfigError(f"users send a request when the last is answered, at no given rate; leave out `{given}`.")


def start_users(
    env: simpy.Environment,
    users: Users,
    trace: Trace,
    requests: Iterable[Request],
    ask: Callable[[Request], simpy.Event],
) -> None:
    """All users send their first requests at once."""
    work = _work(trace, requests)
    for number in range(min(users.num_users, len(trace))):
        env.process(_user(env, work, users.pauses_s(number), ask))


class Turn(NamedTuple):
    """A request, and the think time after its answer, which is the user's own where the trace has none."""

    request: Request
    think_time_s: float | None


def _work(trace: Trace, requests: Iterable[Request]) -> Iterator[Sequence[Turn]]:
    """The units that users take in turn: sessions in order of their beginning, or single requests."""
    if trace.session_id is None:
        return ([Turn(request, None)] for request in requests)
    sessions = session_numbers(trace.session_id)
    turns: dict[int, list[Turn]] = {}
    for request in requests:
        before = turns.setdefault(int(sessions[request.index]), [])
        if before and trace.think_time_s is not None:
            before[-1] = Turn(before[-1].request, float(trace.think_time_s[request.index]))
        before.append(Turn(request, None))
    return iter(turns.values())


def _user(
    env: simpy.Environment,
    work: Iterator[Sequence[Turn]],
    pauses_s: Iterator[float],
    ask: Callable[[Request], simpy.Event],
) -> Process:
    for turns in work:
        for request, think_time_s in turns:
            yield ask(request)
            pause_s = next(pauses_s) if think_time_s is None else think_time_s
            if pause_s:
                yield At(env, env.now + pause_s, ARRIVAL)
