"""Requests that count as waiting in an engine although nothing is missing there: their KV is on its way from another replica."""

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from sim.cluster.handover_records import HandoverRecords
from sim.cluster.records import ClusterRecords
from sim.engine.leap_records import LeapRecords
from sim.engine.records import Floats, Ints

NO_TIMES: Floats = np.zeros(0)


class OnItsWay(NamedTuple):
    """When the KV of a replica's requests was asked for, and when it had come, each in order."""

    asked_s: Floats = NO_TIMES
    come_s: Floats = NO_TIMES

    @classmethod
    def of(cls, handovers: HandoverRecords, rows: NDArray[np.bool_]) -> Self:
        """Those of some requests."""
        moved = rows & handovers.are_handed_over
        return cls(np.sort(handovers.pull_start_s[moved]), np.sort(handovers.pull_end_s[moved]))

    def num_requests(self, starts_s: Floats) -> Ints:
        """How many the passes of steps that follow each other and start then find; what has come is seen by the pass after the next."""
        before_s = np.concatenate([starts_s[:1], starts_s[:-1]])
        asked = np.searchsorted(self.asked_s, starts_s, side="right")
        return np.asarray(asked - np.searchsorted(self.come_s, before_s, side="right"))


class Watched(NamedTuple):
    """Steps, and what was on its way meanwhile."""

    leaps: LeapRecords
    on_its_way: OnItsWay = OnItsWay()


def watched(run: ClusterRecords, pool: int) -> list[Watched]:
    """The steps of a pool; by replica in a fleet that hands KV over."""
    if run.handovers is None:
        return [Watched(run.pools[pool].leaps)]
    return [
        Watched(run.replicas[number].leaps, OnItsWay.of(run.handovers, run.replica == number))
        for number, its_pool in enumerate(run.pool_of)
        if its_pool == pool
    ]
