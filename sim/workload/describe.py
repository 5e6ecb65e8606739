"""What a trace holds, in figures."""

from collections import Counter
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from sim.workload.adapters import num_adapters
from sim.workload.parallel_sampling import one_answer_each
from sim.workload.reuse import reusable_tokens
from sim.workload.trace import Trace

PEAK_WINDOW_S = 10.0


@dataclass(frozen=True, slots=True)
class LengthSummary:
    """Lengths in tokens over all requests."""

    total: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: int

    @classmethod
    def of(cls, tokens: NDArray[np.int64]) -> Self:
        p50, p90, p99 = np.percentile(tokens, [50, 90, 99]).tolist()
        return cls(int(tokens.sum()), float(tokens.mean()), p50, p90, p99, int(tokens.max()))


@dataclass(frozen=True, slots=True)
class TraceDescription:
    """Figures of a trace. Rates are requests a second, None when all arrive at once; the burstiness is the coefficient
    of variation of the gaps (1 for Poisson arrivals); the hit rate is what a prefix cache with room for everything
    reaches at block size 16, None where the trace does not say what prompts share.
    """

    source: str
    format: str
    num_requests: int
    duration_s: float
    mean_rate_rps: float | None
    peak_rate_rps: float | None
    gap_cv: float | None
    prompt_tokens: LengthSummary
    output_tokens: LengthSummary
    max_prefix_cache_hit_rate: float | None
    num_answers: int | None
    num_sessions: int | None
    num_adapters: int | None
    requests_by_priority: dict[int, int] | None


def describe(trace: Trace) -> TraceDescription:
    """The figures that every `servecast trace` prints."""
    prompts = LengthSummary.of(trace.prompt_tokens)
    gaps = np.diff(trace.arrival_s)
    spread = trace.duration_s > 0
    return TraceDescription(
        source=trace.source,
        format=trace.format,
        num_requests=len(trace),
        duration_s=trace.duration_s,
        mean_rate_rps=float(1 / gaps.mean()) if spread else None,
        peak_rate_rps=peak_rate(trace, PEAK_WINDOW_S) if spread else None,
        gap_cv=float(gaps.std() / gaps.mean()) if spread else None,
        prompt_tokens=prompts,
        output_tokens=LengthSummary.of(trace.output_tokens),
        max_prefix_cache_hit_rate=_max_prefix_cache_hit_rate(trace),
        num_answers=None if trace.n is None else int(trace.n.sum()),
        num_sessions=len(set(trace.session_id)) if trace.session_id is not None else None,
        num_adapters=None if trace.lora_name is None else num_adapters(trace),
        requests_by_priority=_by_priority(trace),
    )


def _max_prefix_cache_hit_rate(trace: Trace) -> float | None:
    """Each answer looks for the whole prompt."""
    asked = trace if trace.n is None else one_answer_each(trace)
    return reusable_tokens(asked) / float(asked.prompt_tokens.sum()) if asked.says_contents else None


def peak_rate(trace: Trace, window_s: float) -> float:
    """Requests a second in the busiest window, or in the whole trace when it is shorter."""
    window_s = min(window_s, trace.duration_s)
    ends = np.searchsorted(trace.arrival_s, trace.arrival_s + window_s, side="left")
    return float((ends - np.arange(len(trace))).max() / window_s)


def _by_priority(trace: Trace) -> dict[int, int] | None:
    return None if trace.priority is None else dict(sorted(Counter(trace.priority.tolist()).items()))
