"""Pools as autoscalers see them."""

from sim.cluster.autoscaling.autoscaler import Observed, Shown


def waiting(*counts: int, now_s: float = 0.0, num_replicas: int | None = None, num_queued: int = 0) -> Observed:
    """Ready replicas with so many waiting requests each; others of `num_replicas` are starting."""
    ready = [Shown(count, 0, 0.0) for count in counts]
    return Observed(
        now_s, len(ready) if num_replicas is None else num_replicas, ready, queued_waits_s=[1.0] * num_queued
    )


def late(*latencies: tuple[float, float], now_s: float = 0.0, num_replicas: int | None = None) -> Observed:
    """Ready replicas with a TTFT and a TPOT each."""
    ready = [Shown(0, 1, 0.1, (ttft_s,), (tpot_s,)) for ttft_s, tpot_s in latencies]
    return Observed(now_s, len(ready) if num_replicas is None else num_replicas, ready)
