"""Metrics as a router has them: those of its last scrape, at equal intervals."""

from collections.abc import Sequence

import numpy as np

from sim.cluster.replica import LazyReplica, Replica
from sim.engine.gauges import Gauges, gauges_at
from sim.engine.lock_step_core import LockStepCore
from sim.engine.records import Floats
from sim.engine.ticks import last_multiple


class Scrape:
    """The last metrics of all replicas in columns, by number; all 0 until the first. `num_reads` counts when they changed."""

    def __init__(self, num_replicas: int, interval_s: float) -> None:
        self._interval_s = interval_s
        self._read_at_s: list[float | None] = [None] * num_replicas
        self._all_read_at_s: float | None = None
        self._some_read_at_s: float | None = None
        self._replicas: Sequence[Replica] = ()
        self._cores: list[LockStepCore] = []
        self._columns: tuple[Floats, Floats, Floats] | None = None
        self.gauges: Gauges = [0] * num_replicas, [0] * num_replicas, [0.0] * num_replicas
        self.num_reads = 0

    def refresh(self, now_s: float, replicas: Sequence[Replica]) -> None:
        """Read the candidates' metrics at the last multiple of the interval.

        Call it on every arrival, before a candidate passes that time.
        """
        at_s = last_multiple(now_s, self._interval_s)
        if self._all_read_at_s == at_s:
            return
        if len(replicas) == len(self._read_at_s) and self._some_read_at_s != at_s:
            self._read_all(at_s, replicas)
        else:
            self._read_some(at_s, replicas)

    @property
    def columns(self) -> tuple[Floats, Floats, Floats]:
        """Requests that wait, requests that run and KV cache usage."""
        if self._columns is None:
            num_waiting, num_running, kv_cache_usage = (np.array(gauge, dtype=np.float64) for gauge in self.gauges)
            self._columns = num_waiting, num_running, kv_cache_usage
        return self._columns

    def _read_all(self, at_s: float, replicas: Sequence[Replica]) -> None:
        if replicas is not self._replicas:
            self._replicas, self._cores = replicas, _cores_of(replicas)
        self.gauges = gauges_at(self._cores, at_s) if self._cores else _gauges_of(replicas, at_s)
        self._all_read_at_s = at_s
        self._has_read()

    def _read_some(self, at_s: float, replicas: Sequence[Replica]) -> None:
        """The metrics of those replicas that have not been read since."""
        self._some_read_at_s = at_s
        stale = [replica for replica in replicas if self._read_at_s[replica.number] != at_s]
        if stale:
            num_waiting, num_running, kv_cache_usage = self.gauges
            for replica in stale:
                number = replica.number
                num_waiting[number], num_running[number], kv_cache_usage[number] = replica.metrics(at_s)
                self._read_at_s[number] = at_s
            self._has_read()
        if len(replicas) == len(self._read_at_s):
            self._all_read_at_s = at_s

    def _has_read(self) -> None:
        self.num_reads += 1
        self._columns = None


def _cores_of(replicas: Sequence[Replica]) -> list[LockStepCore]:
    """The engines of replicas that are nothing but these; none if others are among them."""
    cores: list[LockStepCore] = [
        replica.core
        for replica in replicas
        if isinstance(replica, LazyReplica) and isinstance(replica.core, LockStepCore)
    ]
    return cores if len(cores) == len(replicas) else []


def _gauges_of(replicas: Sequence[Replica], at_s: float) -> Gauges:
    shown = [replica.metrics(at_s) for replica in replicas]
    return [waiting for waiting, _, _ in shown], [running for _, running, _ in shown], [usage for _, _, usage in shown]
