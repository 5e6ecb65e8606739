"""Metrics as a router has them: those of its last scrape, at equal intervals."""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from sim.cluster.replica import Replica
from sim.engine.records import Floats
from sim.engine.ticks import last_multiple


class Scrape:
    """The last metrics of all replicas in columns, by number; all 0 until the first. `num_reads` counts when they changed."""

    def __init__(self, num_replicas: int, interval_s: float) -> None:
        self._interval_s = interval_s
        self._read_at_s: list[float | None] = [None] * num_replicas
        self._all_read_at_s: float | None = None
        self._some_read_at_s: float | None = None
        self._rows: Floats = np.zeros((3, num_replicas))
        self.num_reads = 0

    def refresh(self, now_s: float, replicas: Sequence[Replica]) -> None:
        """Read the candidates' metrics at the last multiple of the interval.

        Call it on every arrival, before a candidate passes that time.
        """
        at_s = last_multiple(now_s, self._interval_s)
        if self._all_read_at_s == at_s:
            return
        if len(replicas) == len(self._read_at_s) and self._some_read_at_s != at_s:
            self._rows = np.ascontiguousarray(_columns(at_s, replicas))
            self.num_reads += 1
            self._all_read_at_s = at_s
        else:
            self._read_some(at_s, replicas)

    @property
    def columns(self) -> tuple[Floats, Floats, Floats]:
        """Requests that wait, requests that run and KV cache usage."""
        num_waiting, num_running, kv_cache_usage = self._rows
        return num_waiting, num_running, kv_cache_usage

    def _read_some(self, at_s: float, replicas: Sequence[Replica]) -> None:
        """The metrics of those replicas that have not been read since."""
        self._some_read_at_s = at_s
        stale = [replica for replica in replicas if self._read_at_s[replica.number] != at_s]
        if stale:
            self.num_reads += 1
            numbers = [replica.number for replica in stale]
            self._rows[:, numbers] = _columns(at_s, stale)
            for number in numbers:
                self._read_at_s[number] = at_s
        if len(replicas) == len(self._read_at_s):
            self._all_read_at_s = at_s


def _columns(at_s: float, replicas: Sequence[Replica]) -> Floats:
    """A column a replica."""
    figures = chain.from_iterable([replica.metrics(at_s) for replica in replicas])
    return np.fromiter(figures, np.float64, 3 * len(replicas)).reshape(-1, 3).T
