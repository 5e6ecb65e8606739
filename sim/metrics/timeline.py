"""What the replicas of a run did over time, in equal intervals: few numbers, however long the run."""

from collections.abc import Callable, Iterator
from math import ceil
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.cluster.records import ClusterRecords
from sim.engine.records import Floats, Ints
from sim.engine.step_records import StepRecords
from sim.fleet import DeployedFleet
from sim.metrics.bottlenecks import NextPrompt, what_ran_out
from sim.metrics.cuda_graphs import step_graphs
from sim.metrics.grid import Band, Grid
from sim.metrics.kv_on_its_way import watched
from sim.metrics.over_time import round_up
from sim.metrics.summary import kv_cache_usage

MOST_INTERVALS = 400
GRAPHS = ("full", "piecewise", "none")


class Timeline(NamedTuple):
    """Of all replicas together, an entry an interval; `starts_s` are the beginnings of the intervals.

    `num_replicas` hold GPUs, and `kv_cache_usage` is the mean over them. Rates are tokens a second. `work`, `graphs` and `lacks`
    are shares of the replicas' time: in which steps ran (`prefill`, `mixed`, `decode`), in which CUDA graphs (`full`,
    `piecewise`, `none`), and for want of what requests were left waiting (`token_budget`, `max_num_seqs`, `kv_space`).
    """

    starts_s: Floats
    interval_s: float
    num_running: Band
    num_waiting: Band
    kv_cache_usage: Band
    num_replicas: Floats
    prompt_tokens_per_s: Floats
    output_tokens_per_s: Floats
    work: dict[str, Floats]
    graphs: dict[str, Floats]
    lacks: dict[str, Floats]
    num_preempted: Floats


class _Part(NamedTuple):
    """Steps of some replicas that are alike, and columns that go with them."""

    steps: StepRecords
    kv_cache_usage: Floats
    graph: NDArray[Any]
    lacks: dict[str, NDArray[np.bool_]]


def timeline(fleet: DeployedFleet, run: ClusterRecords) -> Timeline | None:
    """In at most MOST_INTERVALS of 1, 2 or 5 x 10^n seconds, from the first arrival to the last step; None where no step ran."""
    parts = list(_parts(fleet, run))
    if not parts:
        return None
    interval_s = round_up(run.span_s / MOST_INTERVALS)
    edges_s = run.merged.requests.arrival_s[0] + interval_s * np.arange(max(1, ceil(run.span_s / interval_s)) + 1.0)
    all_of = _together(parts)
    grid = Grid(edges_s, all_of(lambda part: part.steps.start_s), all_of(lambda part: part.steps.end_s))
    num_replicas = _held(run, edges_s)
    usage = grid.band(all_of(lambda part: part.kv_cache_usage))

    def share(is_so: Callable[[_Part], NDArray[np.bool_]]) -> Floats:
        return np.clip(grid.mean(all_of(is_so).astype(np.int8)) / num_replicas, 0.0, 1.0)

    def rate(tokens: Callable[[StepRecords], Ints]) -> Floats:
        return np.maximum(0.0, grid.mean(all_of(lambda part: tokens(part.steps) / _durations_s(part.steps))))

    def in_graph(kind: str) -> Floats:
        return share(lambda part: part.graph == kind)

    def for_want_of(name: str) -> Floats:
        return share(lambda part: part.lacks[name])

    return Timeline(
        starts_s=edges_s[:-1],
        interval_s=interval_s,
        num_running=grid.band(all_of(lambda part: part.steps.num_running)),
        num_waiting=grid.band(all_of(lambda part: part.steps.num_waiting)),
        kv_cache_usage=Band(*(np.clip(figure / num_replicas, 0.0, 1.0) for figure in usage)),
        num_replicas=num_replicas,
        prompt_tokens_per_s=rate(lambda steps: steps.num_chunk_tokens),
        output_tokens_per_s=rate(lambda steps: steps.num_sampled + steps.num_accepted),
        work={
            "prefill": share(lambda part: part.steps.num_decodes == 0),
            "mixed": share(lambda part: (part.steps.num_decodes > 0) & (part.steps.num_chunk_tokens > 0)),
            "decode": share(lambda part: part.steps.num_chunk_tokens == 0),
        },
        graphs={kind: in_graph(kind) for kind in GRAPHS},
        lacks={name: for_want_of(name) for name in parts[0].lacks},
        num_preempted=grid.counts(all_of(lambda part: part.steps.num_preempted)),
    )


def _parts(fleet: DeployedFleet, run: ClusterRecords) -> Iterator[_Part]:
    """Pool by pool; replica by replica where some hand KV over."""
    for number, (pool, records) in enumerate(zip(fleet.pools, run.pools, strict=True)):
        deployment, config = pool.deployment, pool.deployment.config
        next_prompt = None if config.engine.enable_chunked_prefill else NextPrompt.of(records.requests)
        for leaps, on_its_way in watched(run, number):
            steps = records.steps if leaps is records.leaps else leaps.steps()
            if len(steps):
                lacks = what_ran_out(steps, config, next_prompt, on_its_way.num_requests(steps.start_s))
                usage = kv_cache_usage(steps.num_free_blocks, deployment.plan.num_gpu_blocks)
                yield _Part(steps, usage, step_graphs(steps, deployment.graph_dispatch), lacks)


def _together(parts: list[_Part]) -> Callable[[Callable[[_Part], Any]], NDArray[Any]]:
    """Gives a column of all parts."""
    return lambda column: np.concatenate([column(part) for part in parts])


def _durations_s(steps: StepRecords) -> Floats:
    """Never 0: step times may be given as 0."""
    return np.maximum(steps.end_s - steps.start_s, 1e-12)


def _held(run: ClusterRecords, edges_s: Floats) -> Floats:
    """How many replicas held GPUs, on average over each interval; 1 where there was none."""
    if not run.lives:
        return np.full(len(edges_s) - 1, float(len(run.replicas)))
    start_s = np.array([life.started_s for life in run.lives])
    gone_s = np.array([life.gone_s for life in run.lives])
    held = Grid(edges_s, np.clip(start_s, *edges_s[[0, -1]]), np.clip(gone_s, *edges_s[[0, -1]]))
    found = held.mean(np.array([float(len(run.replicas_of(life))) for life in run.lives]))
    return np.where(found > 0, found, 1.0)
