"""The gauges of vLLM's /metrics that routers read."""

from typing import NamedTuple


class Metrics(NamedTuple):
    """num_requests_waiting, num_requests_running and kv_cache_usage_perc, the last as a share of the usable blocks (0 to 1)."""

    num_waiting: int
    num_running: int
    kv_cache_usage: float

    def with_waiting(self, num_more: int) -> "Metrics":
        """The same with so many more that wait."""
        return Metrics(self.num_waiting + num_more, self.num_running, self.kv_cache_usage) if num_more else self
