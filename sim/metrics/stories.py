"""What became of single requests, phase by phase."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from sim.cluster.records import ClusterRecords
from sim.engine.records import Floats
from sim.metrics.grid import ROUNDING_S
from sim.metrics.latencies import end_to_end_s, is_completed, time_to_first_token_s
from sim.units import MS
from sim.workload.trace import Trace


class Story(NamedTuple):
    """A completed request; times are seconds. `num_chunks` is None where that is not known."""

    request_id: str
    arrival_s: float
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    queue_s: float
    prefill_s: float
    decode_s: float
    num_chunks: int | None
    num_preemptions: int

    @property
    def ttft_s(self) -> float:
        return self.queue_s + self.prefill_s

    @property
    def e2el_s(self) -> float:
        return self.ttft_s + self.decode_s

    @property
    def text(self) -> str:
        """Its phases in a sentence."""
        return ", ".join(self._phases()) + "."

    def _phases(self) -> Iterator[str]:
        cached = f" ({self.cached_tokens:,} from the prefix cache)" if self.cached_tokens else ""
        chunks = "" if self.num_chunks is None else f" in {counted(self.num_chunks, 'chunk')}"
        yield f"Arrived at {self.arrival_s:,.2f} s, queued {told(self.queue_s)}"
        yield f"{counted(self.prompt_tokens, 'prompt token')}{cached}{chunks}, {told(self.prefill_s)}"
        if self.generated_tokens > 1:
            each_s = self.decode_s / (self.generated_tokens - 1)
            yield f"then {counted(self.generated_tokens - 1, 'further token')} in {told(self.decode_s)}, {told(each_s)} each"
        if self.num_preemptions:
            yield "preempted once" if self.num_preemptions == 1 else f"preempted {self.num_preemptions:,} times"


def told(time_s: float) -> str:
    """`31 ms`, `4.2 s`."""
    return f"{time_s:,.3g} s" if time_s >= 1 else f"{time_s / MS:,.3g} ms"


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def slowest_to_begin(trace: Trace, run: ClusterRecords, most: int) -> list[Story]:
    """Those with the longest time to first token, the slowest first."""
    return _slowest(trace, run, time_to_first_token_s(run.merged.requests), most)


def slowest_to_end(trace: Trace, run: ClusterRecords, most: int) -> list[Story]:
    """Those with the longest end-to-end latency."""
    return _slowest(trace, run, end_to_end_s(run.merged.requests), most)


def _slowest(trace: Trace, run: ClusterRecords, latency_s: Floats, most: int) -> list[Story]:
    done = np.flatnonzero(is_completed(run.merged.requests))
    rows = done[np.argsort(-latency_s[done], kind="stable")][:most]
    return list(_stories(trace, run, rows.tolist()))


def _stories(trace: Trace, run: ClusterRecords, rows: list[int]) -> Iterator[Story]:
    requests = run.merged.requests
    for row in rows:
        scheduled_s, first_s = float(requests.first_scheduled_s[row]), float(requests.first_token_s[row])
        yield Story(
            request_id=trace.request_id[row],
            arrival_s=float(requests.arrival_s[row]),
            prompt_tokens=int(requests.prompt_tokens[row]),
            cached_tokens=int(requests.num_cached_tokens[row]),
            generated_tokens=int(requests.generated_tokens[row]),
            queue_s=scheduled_s - float(requests.arrival_s[row]),
            prefill_s=first_s - scheduled_s,
            decode_s=float(requests.finish_s[row]) - first_s,
            num_chunks=_num_chunks(run, row),
            num_preemptions=int(requests.num_preemptions[row]),
        )


def _num_chunks(run: ClusterRecords, row: int) -> int | None:
    """In how many chunks its prompt was computed, found from its end on in the steps until its first token; None where they
    are not all there: after a preemption, and in fleets that hand prompts over.
    """
    requests, steps = run.merged.requests, run.merged.steps
    counts = [part.leaps.num_ran_steps for part in run.replicas]
    before = sum(counts[: int(run.replica[row])])
    own = slice(before, before + counts[int(run.replica[row])])
    first = before + int(np.searchsorted(steps.start_s[own], requests.first_scheduled_s[row] - ROUNDING_S))
    last = before + int(np.searchsorted(steps.end_s[own], requests.first_token_s[row] + ROUNDING_S))
    begin = int(steps.num_chunks[:first].sum())
    some = slice(begin, begin + int(steps.num_chunks[first:last].sum()))
    chunks = list(zip(steps.chunk_tokens[some].tolist(), steps.chunk_computed_tokens[some].tolist(), strict=True))
    missing, found = int(requests.prompt_tokens[row]), 0
    for tokens, computed in reversed(chunks):
        if computed + tokens == missing:
            missing, found = computed, found + 1
    return found if missing == requests.num_cached_tokens[row] else None
