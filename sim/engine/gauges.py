"""The gauges of many engines in one call: a router may read a hundred of them 20 times a second."""

from sim.engine.lock_step_core import LockStepCore

Gauges = tuple[list[int], list[int], list[float]]
"""Of each engine num_requests_waiting, num_requests_running and kv_cache_usage_perc, as in `Metrics`."""


def gauges_at(cores: list[LockStepCore], time_s: float) -> Gauges:
    """What each shows just before any later time."""
    num_waiting: list[int] = []
    num_running: list[int] = []
    kv_cache_usage: list[float] = []
    for core in cores:
        waiting, running, usage = core.metrics_at(time_s)
        num_waiting.append(waiting)
        num_running.append(running)
        kv_cache_usage.append(usage)
    return num_waiting, num_running, kv_cache_usage
