"""A closed loop: so many clients, each of which sends its next request when it has received the last."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import simpy

from sim.cluster.arrivals import Process
from sim.cluster.clock import ARRIVAL, At
from sim.engine.request import Request


class ClosedLoop(NamedTuple):
    """`concurrency` clients take requests in order of the trace, whose arrival times are not looked at.

    `delay_s` passes between a client's last token and its next request's arrival.
    """

    concurrency: int
    delay_s: float = 0.0


def client(
    env: simpy.Environment, requests: Iterator[Request], delay_s: float, ask: Callable[[Request], simpy.Event]
) -> Process:
    """Send one request after the other, as long as there are any; `ask` tells when it has ended."""
    for request in requests:
        request.arrival_s = env.now
        yield ask(request)
        if delay_s:
            yield At(env, env.now + delay_s, ARRIVAL)
