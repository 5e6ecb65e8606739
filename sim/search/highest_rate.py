"""The highest request rate that keeps all limits, by bisection."""

import math
from collections.abc import Callable

from sim.search.rate_probe import Probe, RateProber

PRECISION = 0.02  # of the highest rate
MOST_DOUBLINGS = 12

OnProbe = Callable[[str], None]


def highest_rate(prober: RateProber, replicas: int, on_probe: OnProbe) -> tuple[Probe | None, Probe | None]:
    """The highest rate that keeps all limits, to PRECISION, and the lowest tried rate that does not; None for one not found."""
    unservable = prober.scenario.unservable
    if unservable and unservable.broken:
        return None, prober.measure(prober.trace_rate, replicas)
    kept, broken = _bracket(prober, replicas, on_probe)
    while kept and broken and broken.request_rate / kept.request_rate > 1 + PRECISION:
        middle = math.sqrt(kept.request_rate * broken.request_rate)
        probe = tried(prober, middle, replicas, on_probe)
        kept, broken = (probe, broken) if probe.keeps else (kept, probe)
    return kept, broken


def _bracket(prober: RateProber, replicas: int, on_probe: OnProbe) -> tuple[Probe | None, Probe | None]:
    """Two rates around the highest one, found by doubling or halving the trace's own rate."""
    probe = tried(prober, prober.trace_rate, replicas, on_probe)
    factor = 2.0 if probe.keeps else 0.5
    for _ in range(MOST_DOUBLINGS):
        following = tried(prober, probe.request_rate * factor, replicas, on_probe)
        if following.keeps != probe.keeps:
            return (probe, following) if probe.keeps else (following, probe)
        probe = following
    return (probe, None) if probe.keeps else (None, probe)


def tried(prober: RateProber, rate: float, replicas: int, on_probe: OnProbe) -> Probe:
    """Probe that rate, having said so."""
    count = prober.sized(replicas).num_servers
    on_probe(f"{rate:.3g} requests/s on {count} replica{'s' if count > 1 else ''}")
    return prober.probe(rate, replicas)
