"""The gauges of vLLM's /metrics that routers read."""

Metrics = tuple[int, int, float]
"""num_requests_waiting, num_requests_running and kv_cache_usage_perc, the last as a share of the usable blocks (0 to 1).

A plain tuple, of which compiled code makes three in the time of a named one: a router may read each replica 20 times a second.
"""
NOTHING_SHOWN: Metrics = (0, 0, 0.0)


def with_waiting(metrics: Metrics, num_more: int) -> Metrics:
    """The same with so many more that wait."""
    num_waiting, num_running, kv_cache_usage = metrics
    return num_waiting + num_more, num_running, kv_cache_usage
