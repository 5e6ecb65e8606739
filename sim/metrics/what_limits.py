"""What limits a run, in one object of its summary."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sim.cluster.records import ClusterRecords
from sim.engine.records import Floats, Records, RequestRecords
from sim.fleet import DeployedFleet, DeployedPool
from sim.metrics.bottlenecks import limited_steps, limits_of, sampled_shapes
from sim.metrics.graph_cliffs import GraphCliff, graph_cliffs
from sim.metrics.kv_on_its_way import Watched, watched
from sim.metrics.latencies import latencies, queue_times
from sim.metrics.overload import Overload, overload
from sim.metrics.statistics import PART, percentiles_of


class Limited(NamedTuple):
    """What limits a pool, or all of them together."""

    busy: Mapping[str, float]
    queued: Mapping[str, float]
    steps: Mapping[str, float]
    cliffs: tuple[GraphCliff, ...]
    text: str


def what_limits(fleet: DeployedFleet, run: ClusterRecords) -> dict[str, Any]:
    """Computed from the records; docs/results.md explains the keys. Shares of time are of all replicas' together.

    With given step times there are no shares of resources, which only the roofline knows.
    """
    requests = run.merged.requests
    by_pool = [
        _of_pool(pool, records, run.replica_s(number), watched(run, number))
        for number, (pool, records) in enumerate(zip(fleet.pools, run.pools, strict=True))
    ]
    found = _together(fleet.pools, run, by_pool) if fleet.is_unlike else by_pool[0]
    return limits_json(found, overload(requests), p99_ttft_queue_share(requests))


def limits_json(found: Limited, over: Overload | None, queue_share: float | None) -> dict[str, Any]:
    """The object; `queue_share` is that of `p99_ttft_queue_share`."""
    cliff_warnings = [f"CUDA-graph cliff: {cliff.text}" for cliff in found.cliffs if cliff.is_worth_saying]
    return {
        "busy": dict(found.busy),
        "queued": dict(found.queued),
        "steps": dict(found.steps),
        "p99_ttft_queue_share": queue_share,
        "graph_cliffs": [cliff._asdict() for cliff in found.cliffs],
        "overload": over and {**over._asdict(), "text": over.text},
        "warnings": [over.text, *cliff_warnings] if over else cliff_warnings,
        "text": found.text,
    }


def _of_pool(pool: DeployedPool, records: Records, span_s: float, steps: Sequence[Watched]) -> Limited:
    deployment, leaps = pool.deployment, records.leaps
    samples = sampled_shapes(leaps, deployment.config)
    config, gpu = deployment.config, deployment.gpu
    found = limits_of(records, config, gpu, deployment.roofline_on, samples, span_s=span_s, steps=steps)
    return Limited(
        found.busy,
        found.queued,
        limited_steps(records, config, steps),
        graph_cliffs(leaps, deployment.engine, samples, deployment.roofline_under),
        str(found) if leaps.num_ran_steps else "nothing ran",
    )


def _together(pools: Sequence[DeployedPool], run: ClusterRecords, found: Sequence[Limited]) -> Limited:
    """Pools count by their busy time, their replicas and their steps; each has its own text."""
    leaps = [records.leaps for records in run.pools]
    return Limited(
        _mean([part.busy for part in found], [part.busy_s for part in leaps]),
        _mean([part.queued for part in found], [pool.num_replicas for pool in pools]),
        _mean([part.steps for part in found], [part.num_ran_steps for part in leaps]),
        tuple(cliff for part in found for cliff in part.cliffs),
        "; ".join(f"{pool.name}: {part.text}" for pool, part in zip(pools, found, strict=True)),
    )


def _mean(shares: Sequence[Mapping[str, float]], weights: Sequence[float]) -> dict[str, float]:
    """Name by name; a pool in which nothing ran has no weight, and may have no names."""
    names = dict.fromkeys(name for part in shares for name in part)
    total = sum(weights) or 1.0
    return {
        name: sum(part.get(name, 0.0) * weight for part, weight in zip(shares, weights, strict=True)) / total
        for name in names
    }


def p99_ttft_queue_share(requests: RequestRecords) -> float | None:
    """The share of the slowest requests' TTFT before they were first scheduled, summed over the completed requests whose TTFT
    is at least the P99. None if nothing completed.
    """
    ttft, queued = latencies(requests).ttft, queue_times(requests)
    if not len(ttft):
        return None
    (p99_s,) = percentiles_of(ttft, (99,))
    slowest: list[tuple[Floats, Floats]] = []
    for first in range(0, len(ttft), PART):
        (ttft_s, _), (queued_s, _) = (of.part(first, first + PART) for of in (ttft, queued))
        slowest.append((ttft_s[ttft_s >= p99_s], queued_s[ttft_s >= p99_s]))
    whole_s, waited_s = (float(np.concatenate(parts).sum()) for parts in zip(*slowest, strict=True))
    return waited_s / whole_s if whole_s else 0.0  # step times may be given as 0
