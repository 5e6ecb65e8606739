"""Replicas over time, where they come and go."""

from collections.abc import Sequence
from math import inf, isfinite
from typing import Any

from sim.cluster.lives import Life
from sim.cluster.records import ClusterRecords


def life_figures(run: ClusterRecords, duration_s: float) -> dict[str, Any]:
    """The mean number of replicas, or servers, that held GPUs during the run, the most of them, and how many did at each change.

    `replicas_over_time` has an object a change: since `at_s`, `replicas` hold GPUs and `ready` of them serve.
    """
    changes = replicas_over_time(run.lives)
    start_s = float(run.merged.requests.arrival_s[0])
    held_s = sum(life.held_s(start_s, start_s + duration_s) for life in run.lives)
    return {
        "mean_replicas": held_s / duration_s if duration_s else None,
        "max_replicas": max((change["replicas"] for change in changes), default=0),
        "replicas_over_time": changes,
    }


def mean_gpus(run: ClusterRecords, num_gpus: Sequence[int], duration_s: float) -> float:
    """GPUs held on average during the run; `num_gpus` are those of a replica, or server, of each pool."""
    start_s = float(run.merged.requests.arrival_s[0])
    end_s = start_s + duration_s
    return sum(num_gpus[life.pool] * life.held_s(start_s, end_s) for life in run.lives) / (duration_s or inf)


def replicas_over_time(lives: tuple[Life, ...]) -> list[dict[str, Any]]:
    """How many replicas hold GPUs and how many of them are ready, at each time at which that changes."""
    changes: dict[float, list[int]] = {}
    for life in lives:
        _count(changes, life.started_s, 1, 0)
        _count(changes, life.gone_s, -1, -1 if _is_ready_at_the_end(life) else 0)
        for at_s in life.ready_s:
            _count(changes, at_s, 0, 1)
        for at_s in life.lost_s:
            _count(changes, at_s, 0, -1)
    found, replicas, ready = [], 0, 0
    for at_s in sorted(changes):
        replicas += changes[at_s][0]
        ready += changes[at_s][1]
        found.append({"at_s": at_s, "replicas": replicas, "ready": ready})
    return found


def _is_ready_at_the_end(life: Life) -> bool:
    """Whether a replica that is gone served until then: one that drains counts as ready."""
    return len(life.ready_s) > len(life.lost_s)


def _count(changes: dict[float, list[int]], at_s: float, replicas: int, ready: int) -> None:
    if isfinite(at_s):
        change = changes.setdefault(at_s, [0, 0])
        change[0] += replicas
        change[1] += ready


def lives_of(run: ClusterRecords, number: int) -> list[dict[str, Any]]:
    """When the replicas of a number were there, each with its server; null where that did not end in the run."""
    return [
        {
            "started_s": life.started_s,
            "ready_s": list(life.ready_s),
            "lost_s": list(life.lost_s),
            "gone_s": life.gone_s if isfinite(life.gone_s) else None,
        }
        for life in sorted(run.lives, key=lambda life: life.started_s)
        if number in run.replicas_of(life)
    ]
