"""Metrics as a router has them: those of its last scrape, at equal intervals."""

from collections.abc import Sequence

import numpy as np

from sim.cluster.clock import last_multiple
from sim.cluster.replica import Replica
from sim.engine.metrics import Metrics
from sim.engine.records import Floats


class Scrape:
    """The last metrics of all replicas in columns; all 0 until the first."""

    def __init__(self, num_replicas: int, interval_s: float) -> None:
        self._interval_s = interval_s
        self._at_s: float | None = None
        self.num_waiting: Floats = np.zeros(num_replicas)
        self.num_running: Floats = np.zeros(num_replicas)
        self.kv_cache_usage: Floats = np.zeros(num_replicas)

    def refresh(self, now_s: float, replicas: Sequence[Replica]) -> None:
        """Bring the metrics to the last multiple of the interval. Call it on every arrival, before a replica passes that time."""
        at_s = last_multiple(now_s, self._interval_s)
        if at_s == self._at_s:
            return
        self._at_s = at_s
        metrics: list[Metrics] = [replica.metrics(at_s) for replica in replicas]
        self.num_waiting, self.num_running, self.kv_cache_usage = np.array(metrics, dtype=np.float64).T
