"""What vLLM's /metrics shows of an engine."""

from typing import NamedTuple


class Metrics(NamedTuple):
    """The gauges num_requests_waiting, num_requests_running and kv_cache_usage_perc, the last a share of the usable blocks."""

    num_waiting: int
    num_running: int
    kv_cache_usage: float
