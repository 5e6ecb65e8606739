"""A workload that is like a trace, in some hundred numbers: to be given away where the trace may not be.

Requests whose prompt goes on from an earlier one's are turns of a session. The sessions that begin in one period of the trace,
those of one turn, of a few and of more, are a class of clients each: what requests are like changes with the hour, and longer
documents are talked about longer. A class has the rate of its sessions in pieces, the burstiness that is left within these, and
its lengths as histograms; what most sessions of all begin with is a shared prefix.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from sim.workload.arrivals import MIN_BURSTINESS, Gamma
from sim.workload.columns import Floats, Ints
from sim.workload.conversations import session_numbers
from sim.workload.generate import generate
from sim.workload.lengths import Choice, Histogram
from sim.workload.prefixes import DEFAULT_HASH_BLOCK_SIZE
from sim.workload.rate_curve import Piece, Pieces
from sim.workload.spec import Workload, WorkloadMix, WorkloadSpec
from sim.workload.trace import Segment, Trace
from sim.workload.waits import FixedWait, LognormalWait, Waits

REQUESTS_A_PERIOD, MOST_PERIODS = 600, 12
SESSIONS_A_PIECE, TICKS_A_PIECE, MOST_PIECES = 30, 20, 240  # the last of the whole trace
SHARES = np.array([*np.linspace(0, 0.96, 25), 0.98, 0.99, 0.995, 1.0])  # of lengths below the ends of bins
KINDS = {"single": (1, 1), "short": (2, 4), "long": (5, np.inf)}  # of sessions, by their turns
MOST_TURNS = 40  # of a session that are told apart
GOES_ON = 0.7  # of the earlier prompt's blocks, for a turn of its session
MOST = 0.5  # of the requests, for a prefix of all and for a clock that ticks
LEAST_CORRELATION = 0.02
LEAST_GAP_S = 1e-3
ROUNDS = 3  # until as many requests come as did


class _Sessions(NamedTuple):
    """The session of each request, numbered as they begin, and the prefixes that sessions begin with."""

    session: Ints
    prefix_tokens: int = 0
    num_prefixes: int = 1


class _Period(NamedTuple):
    """A part of a trace, in seconds from its first request, how long all of it lasts, and how often its clock ticks."""

    begin_s: float
    end_s: float
    lasting_s: float
    tick_s: float | None


def fit(trace: Trace) -> Workload:
    """Priorities, adapters, stages and think times are left out; sessions go on at the trace's times."""
    found, periods = _sessions(trace), _periods(trace)
    turns = np.bincount(found.session)[found.session]
    begins_s = (trace.arrival_s - trace.arrival_s[0])[np.unique(found.session, return_index=True)[1]][found.session]
    classes: dict[str, WorkloadSpec] = {}
    for number, period in enumerate(periods):
        within = (period.begin_s <= begins_s) & (begins_s < period.end_s)
        for kind, (least, most) in KINDS.items():
            rows = np.flatnonzero(within & (least <= turns) & (turns <= most))
            if len(rows):
                classes[f"{kind}-{number}"] = _class(trace, found, rows, period)
    if len(classes) == 1:
        return next(iter(classes.values()))
    return WorkloadMix(tuple(replace(spec, name=name) for name, spec in classes.items()))


def _periods(trace: Trace) -> list[_Period]:
    tick_s = _tick(trace.arrival_s)
    number = int(np.clip(len(trace) // REQUESTS_A_PERIOD, 1, MOST_PERIODS)) if trace.duration_s else 1
    lasting_s = trace.duration_s + (tick_s or LEAST_GAP_S)
    edges = np.linspace(0, lasting_s, number + 1).tolist()
    return [_Period(begin, end, lasting_s, tick_s) for begin, end in pairwise(edges)]


def _class(trace: Trace, found: _Sessions, rows: Ints, period: _Period) -> WorkloadSpec:
    """The workload of some requests, those of whole sessions."""
    own, session = trace.rows(rows), found.session[rows]
    order = np.lexsort((np.arange(len(rows)), session))
    opens = np.diff(session[order], prepend=-1) > 0
    spec = WorkloadSpec(
        num_requests=len(rows),
        request_rate=float("inf"),
        prompt_tokens=_histogram(np.maximum(1, own.prompt_tokens[order][opens] - found.prefix_tokens)),
        output_tokens=_histogram(own.output_tokens),
        prefix_tokens=found.prefix_tokens,
        num_prefixes=found.num_prefixes,
        hash_block_size=_block_size(trace),
    )
    begins_s = np.sort(own.arrival_s[order][opens]) - trace.arrival_s[0]
    if opens.all():
        spec = replace(spec, length_correlation=_rank_correlation(own.prompt_tokens, own.output_tokens))
        return _in_time(spec, begins_s, period) if trace.duration_s else spec
    later = np.flatnonzero(~opens)
    said = (own.prompt_tokens + own.output_tokens)[order]
    spec = replace(
        spec,
        turns=_turns(session),
        turn_gap_s=_gaps(np.diff(own.arrival_s[order])[later - 1]),
        opening_tokens=spec.prompt_tokens,
        prompt_tokens=_histogram(np.maximum(1, own.prompt_tokens[order][later] - said[later - 1])),
    )
    return _as_many(_in_time(spec, begins_s, period)) if trace.duration_s else spec


def _in_time(spec: WorkloadSpec, begins_s: Floats, period: _Period) -> WorkloadSpec:
    """As many requests, of sessions that begin in the period, at the rates and in the bursts of these."""
    edges = _edges(begins_s, period)
    counts, seconds = np.histogram(begins_s, edges)[0], np.diff(edges)
    rates = counts * (spec.count / len(begins_s)) / seconds
    pieces = [Piece(rate, lasting) for rate, lasting in zip(rates.tolist(), seconds.tolist(), strict=True)]
    silence = [
        Piece(0.0, lasting) if lasting > 0 else None for lasting in (period.begin_s, period.lasting_s - period.end_s)
    ]
    due = np.interp(begins_s, edges, np.concatenate([[0.0], np.cumsum(counts)]))
    spread = (
        _spread(due) if period.tick_s is None else _spread_of_ticks(begins_s, edges, counts / seconds, period.tick_s)
    )
    return replace(
        spec,
        num_requests=None,
        duration_s=period.lasting_s,
        request_rate=Pieces(tuple(piece for piece in (silence[0], *pieces, silence[1]) if piece)),
        arrivals=Gamma(float(np.clip(round(1 / max(spread, 1e-3), 3), MIN_BURSTINESS, 100.0))),
        tick_s=period.tick_s,
    )


def _edges(begins_s: Floats, period: _Period) -> Floats:
    """Of the pieces of a rate: with as many sessions in each, so that bursts have short ones; with as many ticks where the clock ticks."""
    span_s = period.end_s - period.begin_s
    most = max(1, round(MOST_PIECES * span_s / period.lasting_s))
    if period.tick_s is not None:
        return np.linspace(
            period.begin_s, period.end_s, int(np.clip(span_s / period.tick_s // TICKS_A_PIECE, 1, most)) + 1
        )
    number = int(np.clip(len(begins_s) // SESSIONS_A_PIECE, 1, most))
    return np.unique([period.begin_s, *np.quantile(begins_s, np.linspace(0, 1, number + 1)[1:-1]), period.end_s])


def _spread(due: Floats) -> float:
    """The square of the gaps' coefficient of variation, where one session is due a unit of time."""
    gaps = np.diff(due)
    return float(gaps.var() / gaps.mean() ** 2) if len(gaps) > 1 and gaps.any() else 1.0


def _spread_of_ticks(begins_s: Floats, edges: Floats, rates: Floats, tick_s: float) -> float:
    """The variance of how many sessions begin in a tick over their mean, which of gamma gaps is in the long run the same."""
    ticks = np.arange(edges[0], edges[-1], tick_s)
    counts = np.bincount(((begins_s - edges[0]) // tick_s).astype(np.int64), minlength=len(ticks))[: len(ticks)]
    means = rates[np.searchsorted(edges, ticks, side="right") - 1] * tick_s
    return float(((counts - means) ** 2).sum() / means.sum())


def _as_many(spec: WorkloadSpec) -> WorkloadSpec:
    """At a rate at which so many come before the end, where sessions are cut short as the trace cut them."""
    number, rate = spec.count, spec.request_rate
    assert isinstance(rate, Pieces), "sessions begin in pieces"
    for _ in range(ROUNDS):
        rate = rate.scaled(number / len(generate(replace(spec, request_rate=rate))))
    return replace(spec, request_rate=rate)


def _sessions(trace: Trace) -> _Sessions:
    """Told by the trace, or by prompts that begin with most of an earlier one."""
    told = np.arange(len(trace)) if trace.session_id is None else session_numbers(trace.session_id)
    if trace.segments is None:
        return _Sessions(told)
    known, before = _known_before(trace.segments)
    common = int(np.bincount(known[known > 0]).argmax()) if (known > 0).mean() > MOST else 0
    session = _by_prompts(trace.segments, known, before, common) if trace.session_id is None else told
    begins = np.unique(session, return_index=True)[1].tolist()
    num_prefixes = len({trace.segments[row][:common] for row in begins})
    return _Sessions(session, common * _block_size(trace), num_prefixes if common else 1)


def _by_prompts(segments: Sequence[tuple[Segment, ...]], known: Ints, before: Ints, common: int) -> Ints:
    """Sessions of prompts that begin with most of an earlier one, and with more than all have in common."""
    session = np.arange(len(segments))
    depths = np.array([len(path) for path in segments])
    for row in np.flatnonzero((known > common) & (known >= GOES_ON * depths[before])).tolist():
        session[row] = session[before[row]]
    return np.unique(session, return_inverse=True)[1]


def _known_before(segments: Sequence[tuple[Segment, ...]]) -> tuple[Ints, Ints]:
    """How many first blocks of each prompt an earlier one had, and the latest that had the last of them."""
    latest: dict[int, int] = {}
    known, before = np.zeros(len(segments), dtype=np.int64), np.zeros(len(segments), dtype=np.int64)
    for row, path in enumerate(segments):
        for content, _ in path:
            if content not in latest:
                break
            known[row], before[row] = known[row] + 1, latest[content]
        latest.update((content, row) for content, _ in path)
    return known, before


def _block_size(trace: Trace) -> int:
    """That of the trace's prompts, which have it in all blocks but the last."""
    sizes = (path[0][1] for path in trace.segments or () if len(path) > 1)
    return next(sizes, DEFAULT_HASH_BLOCK_SIZE)


def _tick(arrival_s: Floats) -> float | None:
    """The tick of a clock so coarse that most requests come at the time of another."""
    gaps = np.diff(arrival_s)
    if not gaps.any() or (gaps == 0).mean() <= MOST:
        return None
    return round(float(np.median(gaps[gaps > 0])), 6)


def _histogram(lengths: Ints) -> Histogram:
    """Bins that hold as many each, finer at the longest, each with the mean of its lengths."""
    begins = np.unique(np.quantile(lengths, SHARES, method="nearest"))
    ends = np.append(begins[1:], begins[-1] + 1)
    bins = []
    for low, end in zip(begins.tolist(), ends.tolist(), strict=True):
        within = lengths[(low <= lengths) & (lengths < end)]
        twice = round(2 * float(within.mean()))
        high = min(end - 1, twice - low)
        bins.append((twice - high, high, float(len(within))))
    return Histogram(tuple(bins))


def _turns(session: Ints) -> Choice:
    """How many turns sessions have, the longest as if they had no more than are told apart."""
    lengths = np.minimum(np.unique(session, return_counts=True)[1], MOST_TURNS)
    turns, times = np.unique(lengths, return_counts=True)
    return Choice(tuple(zip(turns.tolist(), times.astype(np.float64).tolist(), strict=True)))


def _gaps(gaps_s: Floats) -> Waits:
    """A lognormal with the same median and spread."""
    logs = np.log(np.maximum(gaps_s, LEAST_GAP_S))
    median_s, sigma, most_s = (round(float(value), 3) for value in (np.exp(np.median(logs)), logs.std(), gaps_s.max()))
    return LognormalWait(median_s, sigma, most_s) if 0 < median_s < most_s else FixedWait(most_s)


def _rank_correlation(first: Ints, second: Ints) -> float:
    """Spearman's, of ranks as they come where lengths are equal; 0 where there is next to none."""
    if len(first) < 3:
        return 0.0
    ranks = np.array([np.argsort(np.argsort(values, kind="stable"), kind="stable") for values in (first, second)])
    found = round(float(np.corrcoef(ranks)[0, 1]), 3)
    return found if abs(found) >= LEAST_CORRELATION else 0.0
