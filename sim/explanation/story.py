"""The life of one request: when it came, why it waited, each chunk, its first token, its pace, preemptions, its end."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sim.api import Result
from sim.engine.request_table import NO_REPLICA
from sim.errors import ConfigError, nearest
from sim.explanation.parts import PARTS, total
from sim.explanation.passes import Pass, Watched, watch
from sim.explanation.replica_time import ReplicaTime
from sim.explanation.tail import front_end_s, request_spans
from sim.metrics.bottlenecks import QUEUES
from sim.report.run_title import router_text
from sim.units import MS


class Event(NamedTuple):
    """What happened so many ms after the request arrived."""

    at_ms: float
    what: str


class Story(NamedTuple):
    """A request's life as events, and of its whole time the parts in ms; none where it was not completed."""

    request_id: str
    arrival_s: float
    events: tuple[Event, ...]
    parts_ms: Mapping[str, float]

    def __str__(self) -> str:
        events = "\n".join(f"{event.at_ms:>12,.1f} ms  {event.what}" for event in self.events)
        parts = "\n".join(f"{value:>12,.1f} ms  {PARTS[name]}" for name, value in self.parts_ms.items())
        return f"{self.request_id}, arrived {self.arrival_s:,.3f} s into the run\n{events}" + (
            f"\n\nwhere its time went\n{parts}" if parts else ""
        )

    def to_json(self) -> dict[str, Any]:
        """What `servecast explain --request --json` prints."""
        events = [event._asdict() for event in self.events]
        return {**self._asdict(), "events": events, "parts_ms": dict(self.parts_ms)}


def story(result: Result, request_id: str, replicas: Sequence[ReplicaTime]) -> Story:
    """Raises ConfigError for a request that the trace has not."""
    row = row_of(result, request_id)
    life = watch(result, [row])[row]
    requests = result.records.requests
    arrival_s, finish_s = float(requests.arrival_s[row]), float(requests.finish_s[row])
    told = sorted(_events(result, row, life, replicas), key=lambda event: event[0])
    parts_ms = {}
    if np.isfinite(finish_s):
        found = request_spans(result, row, life, replicas)
        parts_s = total(found, arrival_s, finish_s) | front_end_s(result, row)
        parts_ms = {name: seconds / MS for name, seconds in parts_s.items()}
    events = tuple(Event((at_s - arrival_s) / MS, what) for at_s, what in told)
    return Story(request_id, arrival_s - float(requests.arrival_s[0]), events, parts_ms)


def row_of(result: Result, request_id: str) -> int:
    """Raises ConfigError for a name that no request of the trace has."""
    names = list(result.trace.request_id)
    if request_id not in names:
        few = names if len(names) <= 10_000 else []
        raise ConfigError(
            f"the trace has no request {request_id!r}, its names are like {names[0]!r}.{nearest(request_id, few)}"
        )
    return names.index(request_id)


def _events(result: Result, row: int, life: Watched, replicas: Sequence[ReplicaTime]) -> Iterator[tuple[float, str]]:
    """Times and sentences, those of one time in the order in which they happen."""
    requests = result.records.requests
    arrival_s, first_s, finish_s = (
        float(column[row]) for column in (requests.arrival_s, requests.first_token_s, requests.finish_s)
    )
    prompt_tokens, asked = int(requests.prompt_tokens[row]), int(requests.output_tokens[row])
    answers = f" in {result.trace.n[row]} answers" if result.trace.n is not None and result.trace.n[row] > 1 else ""
    yield arrival_s, f"arrived: {prompt_tokens:,} prompt tokens, {asked:,} to be generated{answers}"
    if reason := requests.rejected.get(row):
        yield arrival_s, f"rejected: {reason}"
    yield from _placed(result, row, arrival_s)
    if life.passes:
        yield from _begun(life.passes[0], arrival_s, int(requests.num_cached_tokens[row]), replicas)
    yield from ((at_s, "preempted: its KV blocks went to others") for at_s in life.preempted_s)
    told = list(life.told())
    chunks = [one for one, _, is_again in told if is_again or np.isnan(first_s) or one.start_s < first_s]
    yield from _chunks(chunks, replicas)
    if np.isfinite(first_s):
        yield first_s, f"first token, TTFT {(first_s - arrival_s) / MS:,.1f} ms"
        for late_s in front_end_s(result, row).values():
            ttft_ms = (first_s + late_s - arrival_s) / MS
            yield first_s + late_s, f"its client has it, TTFT {ttft_ms:,.1f} ms by that clock; all tokens are so late"
    later = [one for one, _, is_again in told if not is_again and one.start_s >= first_s]
    generated = int(requests.generated_tokens[row])
    if np.isfinite(finish_s):
        if generated > 1:
            yield finish_s, _pace(later, first_s, finish_s, generated, replicas)
        yield finish_s, f"finished with {generated:,} tokens, E2EL {(finish_s - arrival_s) / MS:,.1f} ms"
    elif reason := requests.failed.get(row):
        yield (life.passes[-1].end_s if life.passes else arrival_s), f"failed after {generated:,} tokens: {reason}"


def _placed(result: Result, row: int, arrival_s: float) -> Iterator[tuple[float, str]]:
    """Which replica the router chose, and what load all had then."""
    run = result.run
    if len(run.replicas) == 1 or (chosen := int(run.replica[row])) == NO_REPLICA:
        return
    loads = []
    for number, part in enumerate(run.replicas):
        leaps = part.leaps.whole
        leap = int(np.searchsorted(leaps.start_s, arrival_s, side="right")) - 1 if len(leaps) else -1
        is_running = leap >= 0 and arrival_s < leaps.end_s[leap]
        load = (int(leaps.num_running[leap]), int(leaps.num_waiting[leap])) if is_running else (0, 0)
        loads.append(f"{number}: {load[0]}+{load[1]}")
    prefilled = int(run.handovers.prefill_replica[row]) if run.handovers else NO_REPLICA
    before = "" if prefilled == NO_REPLICA else f"its prompt to replica {prefilled}, its answer "
    where = f"{before}to replica {chosen} of {len(run.replicas)}"
    yield (
        arrival_s,
        f"sent {where} by {router_text(result.fleet.router)} (running + waiting of each then: {', '.join(loads)})",
    )


def _begun(
    first: Pass, arrival_s: float, num_cached: int, replicas: Sequence[ReplicaTime]
) -> Iterator[tuple[float, str]]:
    waited_s = replicas[first.replica].waited_s(arrival_s, first.scheduled_s)
    causes = [
        f"{seconds / MS:,.1f} ms for {QUEUES[cause]}" for cause, seconds in waited_s.items() if seconds > MS / 100
    ]
    why = f" ({', '.join(causes)})" if causes else ""
    queued = (
        f" after {(first.scheduled_s - arrival_s) / MS:,.1f} ms in the queue" if first.scheduled_s > arrival_s else ""
    )
    cached = f", {num_cached:,} prompt tokens cached" if num_cached else ""
    yield first.scheduled_s, f"first scheduled{queued}{why}{cached}"


def _chunks(passes: Sequence[Pass], replicas: Sequence[ReplicaTime]) -> Iterator[tuple[float, str]]:
    for one in passes:
        others = f"{one.batch_tokens - one.num_tokens:,} tokens of {one.num_others:,} others"
        where = f" on replica {one.replica}" if len(replicas) > 1 else ""
        yield (
            one.start_s,
            f"step{where} of {(one.end_s - one.start_s) / MS:,.1f} ms: {one.num_tokens:,} of its tokens behind {one.num_computed:,}, beside {others}",
        )


def _pace(
    later: Sequence[Pass], first_s: float, finish_s: float, generated: int, replicas: Sequence[ReplicaTime]
) -> str:
    ends_s = np.array([first_s, *(one.end_s for one in later)])
    further = f"{generated - 1:,} more tokens, TPOT {(finish_s - first_s) / (generated - 1) / MS:,.2f} ms"
    if len(ends_s) == 1:
        return further
    gaps_s = np.diff(ends_s)
    longest = int(np.argmax(gaps_s))
    step = replicas[later[longest].replica].step(later[longest].start_s)
    why = f", beside {step.num_chunk_tokens:,} prompt tokens of others" if step.num_chunk_tokens else ""
    return f"{further}, the longest gap {gaps_s[longest] / MS:,.1f} ms{why}"
