"""Processes that change a fleet while it serves: an autoscaler, and faults."""

from collections.abc import Iterator
from typing import Protocol

import simpy

from sim.cluster.arrivals import Process
from sim.cluster.autoscaling.autoscaler import Autoscaler, Observed
from sim.cluster.clock import FLEET, At
from sim.cluster.faults import Outage
from sim.cluster.places import Place, Places

LONGEST_WAIT_S = 86_400.0
"""After so long with requests that wait and no replica asked for, or none ready between faults that are drawn, none will be."""


class Watched(Protocol):
    """What the processes see of the gateway."""

    @property
    def is_done(self) -> bool: ...

    def observed(self, pool: int) -> Observed: ...

    def give_up(self, reason: str) -> None: ...


def scaling(env: simpy.Environment, autoscaler: Autoscaler, pool: int, places: Places, gateway: Watched) -> Process:
    """Ask a pool's autoscaler at equal intervals, until all requests have ended."""
    start_s = last_wanted_s = env.now
    number = 0
    while not gateway.is_done:
        places.scale_to(pool, autoscaler.desired(gateway.observed(pool)))
        if places.num_wanted(pool):
            last_wanted_s = env.now
        elif env.now - last_wanted_s > LONGEST_WAIT_S:
            gateway.give_up("no replica was asked for in a day")
        number += 1
        yield At(env, start_s + number * autoscaler.interval_s, FLEET)


def failing(
    env: simpy.Environment,
    place: Place,
    places: Places,
    outages: Iterator[Outage],
    slow: float | None,
    gateway: Watched,
) -> Process:
    """One fault after the other in a place: its replica is lost, or slow, for a time."""
    for outage in outages:
        yield At(env, env.now + outage.after_s, FLEET)
        if gateway.is_done:
            return
        if places.unready_s(place.pool) > LONGEST_WAIT_S:
            gateway.give_up("no replica was ready in a day")
        if slow is None:
            places.lose(place, outage.for_s)
        else:
            places.slow(place, slow)
        yield At(env, env.now + outage.for_s, FLEET)
        if slow is not None:
            places.slow_no_more(place, slow)
