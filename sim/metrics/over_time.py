"""What each replica of a fleet did over time, at equal intervals."""

from collections.abc import Sequence
from math import ceil, floor, log10
from typing import NamedTuple

import numpy as np

from sim.cluster.records import ClusterRecords
from sim.engine.leap_columns import Leaps
from sim.engine.records import Floats, Ints, RequestRecords
from sim.metrics.columns import Columns
from sim.metrics.summary import kv_cache_usage

MOST_INTERVALS = 200


class ReplicasOverTime(NamedTuple):
    """A row a replica, by number, and a column an interval.

    `time_s` are the beginnings of the intervals; loads, KV usage and whether it `is_ready` are those of that instant, 0 while
    no step runs. `num_arrived` counts requests that were sent there in the interval, `prompt_tokens` and `cached_tokens` those of
    requests that it first scheduled then.
    """

    time_s: Floats
    num_running: Ints
    num_waiting: Ints
    kv_cache_usage: Floats
    is_ready: Ints
    num_arrived: Ints
    prompt_tokens: Floats
    cached_tokens: Floats


def replicas_over_time(run: ClusterRecords, num_gpu_blocks: Sequence[int]) -> ReplicasOverTime:
    """From the first arrival to the end of the last step, in at most MOST_INTERVALS of 1, 2 or 5 x 10^n seconds."""
    first_s = float(run.merged.requests.arrival_s[0])
    interval_s = round_up(run.span_s / MOST_INTERVALS)
    edges_s: Floats = first_s + interval_s * np.arange(max(1, ceil(run.span_s / interval_s)) + 1.0)
    time_s = edges_s[:-1]
    states = [
        states_at(part.leaps.whole, time_s, blocks) for part, blocks in zip(run.replicas, num_gpu_blocks, strict=True)
    ]
    num_running, num_waiting, usage = (np.array(rows) for rows in zip(*states, strict=True))
    requests, replica = run.shares or (run.merged.requests, run.replica)
    counted = [_counts(requests.only(np.flatnonzero(replica == number)), edges_s) for number in range(len(states))]
    arrived, prompts, cached = (np.array(rows) for rows in zip(*counted, strict=True))
    return ReplicasOverTime(
        time_s, num_running, num_waiting, usage, _ready(run, time_s), arrived.astype(np.int64), prompts, cached
    )


def round_up(seconds: float) -> float:
    """The next of 1, 2 and 5 x 10^n."""
    if not seconds:
        return 1.0
    decade = 10.0 ** floor(log10(seconds))
    return next(step * decade for step in (1.0, 2.0, 5.0, 10.0) if seconds <= step * decade)


def states_at(leaps: Leaps, time_s: Floats, num_gpu_blocks: int) -> tuple[Ints, Ints, Floats]:
    """During each leap those after its last pass, and nothing between leaps."""
    if not len(leaps):
        nothing = np.zeros(len(time_s), dtype=np.int64)
        return nothing, nothing, nothing.astype(np.float64)
    start_s = leaps.start_s
    leap = np.maximum(np.searchsorted(start_s, time_s, side="right") - 1, 0)
    runs = (start_s[leap] <= time_s) & (time_s < leaps.end_s[leap])
    usage = kv_cache_usage(leaps.num_free_blocks, num_gpu_blocks)
    return leaps.num_running[leap] * runs, leaps.num_waiting[leap] * runs, usage[leap] * runs


def _counts(requests: RequestRecords, edges_s: Floats) -> tuple[Floats, Floats, Floats]:
    """Of a replica's requests: how many arrived, and the tokens of those that were first scheduled."""
    begun = np.isfinite(requests.first_scheduled_s)
    scheduled_s = requests.first_scheduled_s[begun]
    arrived, _ = np.histogram(requests.arrival_s, edges_s)
    prompts, _ = np.histogram(scheduled_s, edges_s, weights=requests.prompt_tokens[begun])
    cached, _ = np.histogram(scheduled_s, edges_s, weights=requests.num_cached_tokens[begun])
    return arrived, prompts, cached


def _ready(run: ClusterRecords, time_s: Floats) -> Ints:
    """1 where a replica takes requests: always, unless replicas come and go."""
    if not run.lives:
        return np.ones((len(run.replicas), len(time_s)), dtype=np.int64)
    ready = np.zeros((len(run.replicas), len(time_s)), dtype=np.int64)
    for life in run.lives:
        came, lost = (np.searchsorted(sorted(times), time_s, side="right") for times in (life.ready_s, life.lost_s))
        ready[run.replicas_of(life)] |= (came > lost) & (time_s < life.gone_s)
    return ready


def replica_columns(over_time: ReplicasOverTime, pools: Sequence[str], server_of: Sequence[int] = ()) -> Columns:
    """A row an instant and replica, as replicas.csv has them; `pools` has each replica's, `server_of` its server where one has several."""
    num_replicas, num_times = over_time.num_running.shape
    columns: Columns = {
        "time_s": np.tile(over_time.time_s, num_replicas),
        "replica": np.repeat(np.arange(num_replicas), num_times),
        "pool": np.repeat(np.array(pools), num_times),
    }
    if server_of:
        columns["server"] = np.repeat(np.array(server_of), num_times)
    return columns | {name: getattr(over_time, name).ravel() for name in ReplicasOverTime._fields[1:]}
