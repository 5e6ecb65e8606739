"""The process that submits a trace's requests at the trace's times."""

from collections.abc import Callable, Generator, Iterable
from itertools import islice
from typing import Any

import simpy

from sim.cluster.clock import ARRIVAL, At
from sim.engine.request import Request

Process = Generator[simpy.Event, Any, None]


def arrivals(
    env: simpy.Environment, requests: Iterable[Request], submit: Callable[[Request], object], at_once: int = 1
) -> Process:
    """Submit requests, which come in order of arrival; so many `at_once` where nobody looks between them."""
    coming = iter(requests)
    while some := list(islice(coming, at_once)):
        if some[-1].arrival_s > env.now:
            yield At(env, some[-1].arrival_s, ARRIVAL)
        for request in some:
            submit(request)
