"""How the latencies of a run are distributed, in few points however many samples there are."""

from typing import NamedTuple

import numpy as np

from sim.engine.records import Floats, Ints, Records
from sim.metrics.latencies import latencies

LEVELS = np.unique(np.concatenate((np.linspace(0.0, 1.0, 201), 1 - np.geomspace(1e-5, 0.1, 81))))
"""Shares of the samples at which a distribution is told where there are more samples: evenly, and ever closer to 1."""


class Distribution(NamedTuple):
    """Samples in order, and the share of all samples up to each."""

    samples_s: Floats
    shares: Floats

    def at(self, share: float) -> float:
        """The smallest of these samples up to which so many are, in seconds."""
        return float(self.samples_s[np.searchsorted(self.shares, share)])


def distributions(records: Records) -> dict[str, Distribution | None]:
    """By latency; None where there is no sample."""
    of_requests = latencies(records.requests)
    found = {name: distribution(getattr(of_requests, name).all_s()) for name in ("ttft", "tpot")}
    return found | {"itl": distribution(*records.gaps()), "e2el": distribution(of_requests.e2el.all_s())}


def distribution(samples_s: Floats, counts: Ints | None = None) -> Distribution | None:
    """Of samples that occur so many times each, once when None."""
    if counts is not None:
        samples_s, counts = samples_s[counts > 0], counts[counts > 0]
    if not len(samples_s):
        return None
    order = np.argsort(samples_s)
    ends = np.arange(1, len(order) + 1) if counts is None else np.cumsum(counts[order])
    shares = ends / ends[-1]
    kept = np.unique(np.searchsorted(shares, LEVELS)) if len(order) > len(LEVELS) else np.arange(len(order))
    return Distribution(samples_s[order[kept]], shares[kept])
