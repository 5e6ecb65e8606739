"""The process that submits a trace's requests at the trace's times."""

from collections.abc import Callable, Generator, Iterable
from typing import Any

import simpy

from sim.cluster.clock import ARRIVAL, At
from sim.engine.request import Request

Process = Generator[simpy.Event, Any, None]


def arrivals(env: simpy.Environment, requests: Iterable[Request], submit: Callable[[Request], object]) -> Process:
    """Submit requests, which come in order of arrival."""
    for request in requests:
        if request.arrival_s > env.now:
            yield At(env, request.arrival_s, ARRIVAL)
        submit(request)
