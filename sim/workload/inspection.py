"""A closer look at a trace: rates over time, burstiness, what caches of several sizes find again, sessions."""

from dataclasses import dataclass
from itertools import count as powers

import numpy as np

from sim.workload.columns import Floats, Ints
from sim.workload.conversations import session_numbers
from sim.workload.describe import peak_rate
from sim.workload.stack_distance import Reuses, reuses
from sim.workload.trace import Trace

MINUTE_S = 60.0
DISPERSION_WINDOW_S = 10.0
FEWEST_WINDOWS = 10  # for an index of dispersion
SMALLEST_CACHE_TOKENS = 10_000


@dataclass(frozen=True, slots=True)
class HitRate:
    """The share of prompt tokens that a prefix cache of this size finds."""

    cache_tokens: int
    hit_rate: float


@dataclass(frozen=True, slots=True)
class PrefixReuse:
    """What an LRU cache finds again where requests come one by one and answers take no room but where a later turn repeats
    them: running requests and their answers leave a real one less. The gaps lie between two uses of a block.
    """

    block_size: int
    distinct_tokens: int
    enough_cache_tokens: int
    hit_rate_by_cache_size: tuple[HitRate, ...]
    gap_p50_s: float | None
    gap_p90_s: float | None


@dataclass(frozen=True, slots=True)
class Sessions:
    """Turns a session; think times that are recorded, or else the seconds between the arrivals of turns; and how many sessions
    are between their first arrival and their last at a time.
    """

    mean_turns: float
    p50_turns: float
    p90_turns: float
    max_turns: int
    think_time_is_recorded: bool
    think_time_p50_s: float | None
    think_time_p90_s: float | None
    mean_open: float | None
    peak_open: int


@dataclass(frozen=True, slots=True)
class TraceInspection:
    """Requests a second in the busiest minute, None for less than one; requests in each minute from the first on that has any; the index of dispersion is the
    variance of the counts in windows of 10 s over their mean, 1 for Poisson arrivals, None for too few windows.
    """

    peak_minute_rps: float | None
    requests_by_minute: dict[int, int]
    index_of_dispersion: float | None
    dispersion_window_s: float
    prefix_reuse: PrefixReuse | None
    sessions: Sessions | None


def inspect(trace: Trace) -> TraceInspection:
    """The figures that `servecast trace inspect` prints beside those of `describe`."""
    return TraceInspection(
        peak_minute_rps=peak_rate(trace, MINUTE_S) if trace.duration_s >= MINUTE_S else None,
        requests_by_minute=_counts(trace, MINUTE_S),
        index_of_dispersion=_index_of_dispersion(trace),
        dispersion_window_s=DISPERSION_WINDOW_S,
        prefix_reuse=_prefix_reuse(reuses(trace)) if trace.says_contents else None,
        sessions=None if trace.session_id is None else _sessions(trace, session_numbers(trace.session_id)),
    )


def windows(trace: Trace, window_s: float) -> Ints:
    """Which window each request is in, from 0 at the first."""
    numbers: Floats = (trace.arrival_s - trace.arrival_s[0]) // window_s
    return numbers.astype(np.int64)


def _counts(trace: Trace, window_s: float) -> dict[int, int]:
    """Of windows with a request: a trace may pause for years."""
    found, counts = np.unique(windows(trace, window_s), return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def _index_of_dispersion(trace: Trace) -> float | None:
    """Windows without a request count as well, and the last, cut short, does not."""
    whole = int(trace.duration_s // DISPERSION_WINDOW_S)
    if whole < FEWEST_WINDOWS:
        return None
    counts = [count for window, count in _counts(trace, DISPERSION_WINDOW_S).items() if window < whole]
    mean = sum(counts) / whole
    return sum(count**2 for count in counts) / whole / mean - mean


def _prefix_reuse(found: Reuses) -> PrefixReuse:
    return PrefixReuse(
        block_size=found.block_size,
        distinct_tokens=found.distinct_blocks * found.block_size,
        enough_cache_tokens=found.enough_tokens,
        hit_rate_by_cache_size=tuple(HitRate(size, found.hit_rate(size)) for size in _cache_sizes(found.enough_tokens)),
        gap_p50_s=found.gap_percentile_s(50),
        gap_p90_s=found.gap_percentile_s(90),
    )


def _cache_sizes(enough_tokens: int) -> list[int]:
    """1 and 3 of each decade, as far as there is more to find."""
    sizes: list[int] = []
    for power in powers():
        for factor in (1, 3):
            sizes.append(factor * SMALLEST_CACHE_TOKENS * 10**power)
            if sizes[-1] >= enough_tokens:
                return sizes
    raise AssertionError


def _sessions(trace: Trace, session: Ints) -> Sessions:
    turns = np.bincount(session)
    order = np.argsort(session, kind="stable")
    arrival_s = trace.arrival_s[order]
    follows = session[order][1:] == session[order][:-1]
    recorded = trace.think_time_s is not None
    waits_s = (np.diff(arrival_s) if trace.think_time_s is None else trace.think_time_s[order][1:])[follows]
    ends = np.cumsum(turns)
    begin_s, end_s = arrival_s[ends - turns], arrival_s[ends - 1]
    p50, p90 = np.percentile(turns, [50, 90]).tolist()
    return Sessions(
        mean_turns=float(turns.mean()),
        p50_turns=p50,
        p90_turns=p90,
        max_turns=int(turns.max()),
        think_time_is_recorded=recorded,
        think_time_p50_s=_percentile(waits_s, 50),
        think_time_p90_s=_percentile(waits_s, 90),
        mean_open=float((end_s - begin_s).sum() / trace.duration_s) if trace.duration_s else None,
        peak_open=_most_at_once(begin_s, end_s),
    )


def _most_at_once(begin_s: Floats, end_s: Floats) -> int:
    """Of intervals with both their ends."""
    begun = np.arange(1, len(begin_s) + 1)
    ended = np.searchsorted(np.sort(end_s), np.sort(begin_s), side="left")
    return int((begun - ended).max())


def _percentile(values: Floats, q: float) -> float | None:
    return float(np.percentile(values, q)) if len(values) else None
