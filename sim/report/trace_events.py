"""A run in the Trace Event Format, which Perfetto (https://ui.perfetto.dev) and chrome://tracing show: a track a replica with its steps,
a track a request with its phases, and counters.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Times are microseconds since the trace's own 0.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sim.cluster.records import ClusterRecords
from sim.engine.records import Floats, Ints, RequestRecords
from sim.fleet import DeployedFleet
from sim.metrics.cuda_graphs import step_graphs
from sim.metrics.latencies import time_to_first_token_s
from sim.metrics.preempted import Stretches, preempted_spans
from sim.metrics.summary import kv_cache_usage
from sim.metrics.timeline import Timeline
from sim.workload.trace import Trace

Event = dict[str, Any]
MOST_STEPS, MOST_REQUESTS = 10_000, 1_000
RUN, REQUESTS, FIRST_REPLICA = 1, 2, 10
"""Numbers of processes, under which tracks stand together."""
NS_PER_S = 1_000_000_000
COLOURS = {
    "prefill": "thread_state_iowait",
    "mixed": "thread_state_runnable",
    "decode": "thread_state_running",
    "queued": "grey",
    "preempted": "terrible",
}
"""Names that chrome://tracing has colours for; Perfetto gives each name one of its own."""
RULE = (
    f"of steps the {MOST_STEPS:,} nearest in time to the end of the longest wait for a first token; of requests the {MOST_REQUESTS // 2}"
    f" that waited longest and {MOST_REQUESTS // 2} at equal distances; counters are means of equal intervals"
)


class Kept(NamedTuple):
    """The rows of the steps and of the requests that are shown."""

    steps: Ints
    requests: Ints


def write_trace_events(
    path: Path, fleet: DeployedFleet, run: ClusterRecords, trace: Trace, over_time: Timeline | None
) -> None:
    """An event a line."""
    kept = _kept(run)
    about = {
        "sampling": RULE,
        "steps": f"{len(kept.steps):,} of {len(run.merged.steps):,}",
        "requests": f"{len(kept.requests):,} of {len(run.merged.requests):,}",
    }
    head = json.dumps({"displayTimeUnit": "ms", "otherData": about})
    events = (
        json.dumps(event, separators=(",", ":"), allow_nan=False)
        for event in _events(fleet, run, trace, over_time, kept)
    )
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(f'{head[:-1]}, "traceEvents": [\n')
        file.write(",\n".join(events))
        file.write("\n]}\n")


def _kept(run: ClusterRecords) -> Kept:
    requests, steps = run.merged.requests, run.merged.steps
    ttft_s = time_to_first_token_s(requests)
    begun = np.flatnonzero(np.isfinite(ttft_s))
    by_wait = begun[np.argsort(-ttft_s[begun], kind="stable")]
    shown, near = begun, np.arange(len(steps))
    if len(begun) > MOST_REQUESTS:
        evenly = begun[np.linspace(0, len(begun) - 1, MOST_REQUESTS // 2).astype(np.int64)]
        shown = np.union1d(by_wait[: MOST_REQUESTS // 2], evenly)
    if len(steps) > MOST_STEPS:
        apart_s = np.abs(steps.end_s - requests.first_token_s[by_wait[0]])
        near = np.sort(np.argsort(apart_s, kind="stable")[:MOST_STEPS])
    return Kept(near, shown)


def _events(
    fleet: DeployedFleet, run: ClusterRecords, trace: Trace, over_time: Timeline | None, kept: Kept
) -> Iterator[Event]:
    yield from _named(RUN, "all replicas")
    yield from _named(REQUESTS, "requests")
    if over_time:
        yield from _counters(over_time)
    yield from _steps(fleet, run, kept.steps)
    yield from _requests(run, trace, kept.requests)


def _named(process: int, name: str) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": process, "tid": 0, "args": {"sort_index": process}}


def _track(process: int, track: int, name: str) -> Event:
    return {"ph": "M", "name": "thread_name", "pid": process, "tid": track, "args": {"name": name}}


def _slice(process: int, track: int, name: str, start_ns: int, end_ns: int, args: Event) -> Event:
    return {
        "ph": "X", "name": name, "cat": "step" if process >= FIRST_REPLICA else "request", "pid": process, "tid": track,
        "ts": start_ns / 1000, "dur": (end_ns - start_ns) / 1000, "cname": COLOURS[name], "args": args,
    }  # fmt: skip


def _ns(times_s: Floats) -> list[int]:
    """Whole nanoseconds, so that what ends where the next begins does so to the bit."""
    return [round(time_s * NS_PER_S) for time_s in times_s.tolist()]


def _counters(found: Timeline) -> Iterator[Event]:
    bands = zip(found.num_running.mean, found.num_waiting.mean, found.kv_cache_usage.mean, strict=True)
    for start_ns, (running, waiting, usage) in zip(_ns(found.starts_s), bands, strict=True):
        counted = {"running": round(float(running), 3), "waiting": round(float(waiting), 3)}
        for name, args in (("requests", counted), ("KV cache usage (%)", {"in use": round(100 * float(usage), 3)})):
            yield {"ph": "C", "name": name, "pid": RUN, "tid": 0, "ts": start_ns / 1000, "args": args}


def _steps(fleet: DeployedFleet, run: ClusterRecords, rows: Ints) -> Iterator[Event]:
    """Steps that overlap, as those of pipeline stages do, have a track for each that runs at a time."""
    steps, first = run.merged.steps, 0
    graphs = [step_graphs(steps, pool.deployment.graph_dispatch) for pool in fleet.pools]
    for number, (part, pool) in enumerate(zip(run.replicas, run.pool_of, strict=True)):
        own = rows[(rows >= first) & (rows < first + part.leaps.num_ran_steps)]
        first += part.leaps.num_ran_steps
        deployment = fleet.pools[pool].deployment
        process = FIRST_REPLICA + number
        yield from _named(process, f"replica {number} ({fleet.pools[pool].name} on {deployment.gpu.name})")
        if not len(own):
            continue
        columns = {
            "decodes": steps.num_decodes[own].tolist(),
            "chunk_tokens": steps.num_chunk_tokens[own].tolist(),
            "chunks": steps.num_chunks[own].tolist(),
            "running": steps.num_running[own].tolist(),
            "waiting": steps.num_waiting[own].tolist(),
            "preempted": steps.num_preempted[own].tolist(),
            "kv_cache_usage": kv_cache_usage(steps.num_free_blocks[own], deployment.plan.num_gpu_blocks)
            .round(6)
            .tolist(),
            "cudagraph": graphs[pool][own].tolist(),
        }
        starts, ends = _ns(steps.start_s[own]), _ns(steps.end_s[own])
        tracks = _tracks(starts, ends)
        yield from (
            _track(process, track, "steps" if track == 1 else f"steps, {track}") for track in range(1, max(tracks) + 1)
        )
        for place, (start, end, track) in enumerate(zip(starts, ends, tracks, strict=True)):
            args = {name: column[place] for name, column in columns.items()}
            yield _slice(process, track, _kind(args), start, end, args)


def _kind(step: Event) -> str:
    return "prefill" if not step["decodes"] else "mixed" if step["chunk_tokens"] else "decode"


def _tracks(starts: Sequence[int], ends: Sequence[int]) -> list[int]:
    """For each span the first track that is free, from 1 on."""
    free_from: list[int] = []
    found = []
    for start, end in zip(starts, ends, strict=True):
        track = next((number for number, free in enumerate(free_from) if free <= start), len(free_from))
        free_from[track : track + 1] = [end]
        found.append(track + 1)
    return found


def _requests(run: ClusterRecords, trace: Trace, rows: Ints) -> Iterator[Event]:
    """Queued, prefill, decode; where that is known also preempted, from the last token before to the first since."""
    requests = run.merged.requests
    stretches = [Stretches.of(part.leaps) for part in run.replicas]
    for track, row in enumerate(rows.tolist(), 1):
        replica = int(run.replica[row])
        its = stretches[replica] if requests.num_preemptions[row] and np.isfinite(requests.finish_s[row]) else None
        spans = preempted_spans(its, run, row) if its else None
        args = {
            "prompt_tokens": int(requests.prompt_tokens[row]),
            "cached_tokens": int(requests.num_cached_tokens[row]),
            "generated_tokens": int(requests.generated_tokens[row]),
            "preemptions": int(requests.num_preemptions[row]),
            "replica": replica,
        }
        yield _track(REQUESTS, track, trace.request_id[row])
        for name, start_s, end_s in _phases(requests, row, spans or []):
            start, end = _ns(np.array([start_s, end_s]))
            yield _slice(REQUESTS, track, name, start, end, args)


def _phases(
    requests: RequestRecords, row: int, spans: Iterable[tuple[float, float]]
) -> Iterator[tuple[str, float, float]]:
    columns = (requests.arrival_s, requests.first_scheduled_s, requests.first_token_s, requests.finish_s)
    arrival_s, scheduled_s, first_s, finish_s = (float(column[row]) for column in columns)
    yield "queued", arrival_s, scheduled_s
    yield "prefill", scheduled_s, first_s
    if not np.isfinite(finish_s):
        return
    at_s = first_s
    for stopped_s, resumed_s in spans:
        if stopped_s > at_s:
            yield "decode", at_s, stopped_s
        yield "preempted", stopped_s, resumed_s
        at_s = resumed_s
    if finish_s > at_s:
        yield "decode", at_s, finish_s
