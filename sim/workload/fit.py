"""A workload that is like a trace, in some hundred numbers: to be given away where the trace may not be.

Requests whose prompt goes on from an earlier one's are turns of a session. The sessions that begin in one period of the trace,
those of one turn, of a few and of more, are a class of clients each: what requests are like changes with the hour, and longer
documents are talked about longer. A class has the rate of its sessions in pieces, the burstiness that is left within these, and
its lengths as histograms; what most sessions of all begin with is a shared prefix. No length, number of turns or rate stands for fewer
than LEAST requests or sessions, and bins begin at lengths that no trace has chosen, unless they are of one length alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from sim.workload.arrivals import MIN_BURSTINESS, Gamma
from sim.workload.columns import Floats, Ints
from sim.workload.conversations import session_numbers
from sim.workload.generate import generate
from sim.workload.lengths import Choice, Histogram
from sim.workload.prefixes import DEFAULT_HASH_BLOCK_SIZE
from sim.workload.rate_curve import Piece, Pieces
from sim.workload.sessions import Flags
from sim.workload.spec import Workload, WorkloadMix, WorkloadSpec
from sim.workload.trace import Segment, Trace
from sim.workload.waits import FixedWait, LognormalWait, Waits

REQUESTS_A_PERIOD, MOST_PERIODS = 600, 12
SESSIONS_A_PIECE, TICKS_A_PIECE, MOST_PIECES = 30, 20, 240  # the last of the whole trace
BURSTY = 2.0  # times as uneven as Poisson: then pieces are a third as long, so that they are the bursts
LEAST = 10  # requests, or sessions, that a number in a workload tells of
BINS, TAIL = 25, 0.04  # of lengths, and the share of all in which bins are as small as they may be
GRID = np.unique(
    np.rint(1.03 ** np.arange(750)).astype(np.int64)
)  # lengths at which bins may begin, whatever the trace
KINDS = {"single": (1, 1), "short": (2, 4), "long": (5, np.inf)}  # of sessions, by their turns
GOES_ON = 0.7  # of the earlier prompt's blocks, for a turn of its session
MOST = 0.5  # of the requests, for a prefix of all and for a clock that ticks
LEAST_CORRELATION = 0.02
LEAST_GAP_S = 1e-3
PRECISION = 1e-3  # of a lognormal's width
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
    found, classes = _sessions(trace), dict[str, WorkloadSpec]()
    turns = np.bincount(found.session)
    begins_s = (trace.arrival_s - trace.arrival_s[0])[np.unique(found.session, return_index=True)[1]]
    for kind, own in _kinds(turns):
        for number, period in enumerate(_periods(trace, begins_s[own], int(turns[own].sum()))):
            sessions = own & (period.begin_s <= begins_s) & (begins_s < period.end_s)
            classes[f"{kind}-{number}"] = _class(trace, found, np.flatnonzero(sessions[found.session]), period)
    if len(classes) == 1:
        return next(iter(classes.values()))
    return WorkloadMix(tuple(replace(spec, name=name) for name, spec in classes.items()))


def _kinds(turns: Ints) -> Iterator[tuple[str, Flags]]:
    """Sessions by their turns; fewer than LEAST are with those of fewer turns, or of more where there are none."""
    waiting = np.zeros(len(turns), dtype=np.bool_)
    for kind, (least, most) in reversed(KINDS.items()):
        waiting |= (least <= turns) & (turns <= most)
        num_left = int((turns < least).sum())
        if waiting.sum() >= LEAST and (num_left >= LEAST or not num_left):
            yield kind, waiting
            waiting = np.zeros(len(turns), dtype=np.bool_)
    if waiting.any():
        yield "single", waiting


def _periods(trace: Trace, begins_s: Floats, num_requests: int) -> Iterator[_Period]:
    """Of sessions that begin then, at least LEAST in each."""
    tick_s = _tick(trace.arrival_s)
    number = int(np.clip(num_requests // REQUESTS_A_PERIOD, 1, MOST_PERIODS)) if trace.duration_s else 1
    lasting_s = round(trace.duration_s + (tick_s or 2 * LEAST_GAP_S), 3)
    edges = np.round(np.linspace(0, lasting_s, number + 1), 3)
    begin, done = 0.0, 0
    for end in edges[1:].tolist():
        num_begun = int((begins_s < end).sum())
        left = len(begins_s) - num_begun
        if end == edges[-1] or (num_begun - done >= LEAST <= left):
            yield _Period(begin, end, lasting_s, tick_s)
            begin, done = end, num_begun


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
    counts, seconds, spread = _counted(begins_s, edges, period)
    if period.tick_s is None and spread > BURSTY:
        edges = _edges(begins_s, period, finer=3)
        counts, seconds, spread = _counted(begins_s, edges, period)
    begin_rates = _without_chance(counts, seconds, spread)
    rates = begin_rates * (spec.count / len(begins_s))
    pieces = [Piece(_short(rate), lasting) for rate, lasting in zip(rates.tolist(), seconds.tolist(), strict=True)]
    silence = [
        Piece(0.0, lasting) if lasting > 0 else None
        for lasting in (period.begin_s, round(period.lasting_s - period.end_s, 3))
    ]
    spread = _spread_within(begins_s, edges, begin_rates, period)
    return replace(
        spec,
        num_requests=None,
        duration_s=period.lasting_s,
        request_rate=Pieces(tuple(piece for piece in (silence[0], *pieces, silence[1]) if piece)),
        arrivals=Gamma(float(np.clip(round(1 / max(spread, 1e-3), 3), MIN_BURSTINESS, 100.0))),
        tick_s=period.tick_s,
    )


def _counted(begins_s: Floats, edges: Floats, period: _Period) -> tuple[Ints, Floats, float]:
    """Of pieces: sessions that begin in each, how long they last, and how unevenly sessions begin within them."""
    counts, seconds = np.histogram(begins_s, edges)[0], np.round(np.diff(edges), 3)
    return counts, seconds, _spread_within(begins_s, edges, counts / seconds, period)


def _edges(begins_s: Floats, period: _Period, finer: int = 1) -> Floats:
    """Of the pieces of a rate: with as many sessions in each, so that bursts have short ones; with as many ticks where the clock ticks."""
    span_s = period.end_s - period.begin_s
    most = max(1, round(MOST_PIECES * span_s / period.lasting_s))
    if period.tick_s is not None:
        number = int(np.clip(span_s / period.tick_s // TICKS_A_PIECE, 1, most))
        return np.round(np.linspace(period.begin_s, period.end_s, number + 1), 3)
    number = int(np.clip(len(begins_s) * finer // SESSIONS_A_PIECE, 1, most * finer))
    inner = np.round(np.quantile(begins_s, np.linspace(0, 1, number + 1)[1:-1]), 3)
    return np.unique([period.begin_s, *inner, period.end_s])


def _short(rate: float) -> float:
    """In few digits, and not less: the last request must not wait for the first piece to come again."""
    return float(f"{rate * (1 + 6e-6):.6g}")


def _without_chance(counts: Ints, seconds: Floats, spread: float) -> Floats:
    """The rates of pieces, as far from their mean as they are beyond what chance makes of equal ones: what is drawn adds that anew."""
    mean, rates = counts.sum() / seconds.sum(), counts / seconds
    variance = float(np.average((rates - mean) ** 2, weights=seconds))
    by_chance = spread * mean**2 / max(1.0, counts.mean())
    kept = np.sqrt(max(0.0, 1 - by_chance / variance)) if variance else 0.0
    return np.asarray(mean + kept * (rates - mean))


def _spread_within(begins_s: Floats, edges: Floats, rates: Floats, period: _Period) -> float:
    """How unevenly sessions begin within pieces of these rates, 1 as by Poisson."""
    if period.tick_s is not None:
        return _spread_of_ticks(begins_s, edges, rates, period.tick_s)
    return _spread(np.interp(begins_s, edges, np.concatenate([[0.0], np.cumsum(rates * np.diff(edges))])))


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
    rate = Pieces(tuple(replace(piece, rate=_short(piece.rate)) for piece in rate.pieces))
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
    """Bins of at least LEAST lengths, finer at the longest, each with the mean of its own, within where GRID has it begin and end.

    The LEAST longest are one, so that a single long one changes no other.
    """
    lengths = np.sort(lengths)
    longest = lengths[-LEAST:] if len(lengths) >= 2 * LEAST else lengths
    others = lengths[: len(lengths) - len(longest)]
    bins = [_bin(longest)]
    if len(others):
        cells = _cells(others)
        bins += [_bin(others[(first <= cells) & (cells <= last)]) for first, last in _grouped(np.bincount(cells))]
    return Histogram(tuple(bins[::-1]))


def _cells(lengths: Ints) -> Ints:
    return np.asarray(np.searchsorted(GRID, lengths, side="right") - 1)


def _bin(lengths: Ints) -> tuple[int, int, int]:
    first, last = _cells(lengths[[0, -1]]).tolist()
    low, most = int(GRID[first]), int(GRID[last + 1]) - 1
    if len(lengths) >= LEAST and lengths[0] == lengths[-1]:
        low = most = int(lengths[0])
    twice = round(2 * float(lengths.mean()))
    high = min(most, twice - low)
    return twice - high, high, len(lengths)


def _grouped(counts: Ints) -> Iterator[tuple[int, int]]:
    """The first and the last cell of each bin, from the top: LEAST are enough in the tail, below it takes a share of all."""
    cells, number, done = np.flatnonzero(counts), int(counts.sum()), 0
    last = int(cells[-1])
    held = 0
    for cell in cells[::-1].tolist():
        held += int(counts[cell])
        enough = LEAST if done + held <= TAIL * number else max(LEAST, number / BINS)
        left = number - done - held
        if held >= enough and (left >= LEAST or left == 0):
            yield cell, last
            done, held = done + held, 0
            last = int(cells[cells < cell][-1]) if left else -1
    if held:
        yield int(cells[0]), last


def _turns(session: Ints) -> Choice:
    """How many turns sessions have: the mean where fewer than LEAST sessions have as many."""
    lengths = np.unique(session, return_counts=True)[1]
    bins = []
    for first, last in _grouped(np.bincount(lengths)):
        within = lengths[(first <= lengths) & (lengths <= last)]
        bins.append((round(float(within.mean())), len(within)))
    return Choice(tuple(bins[::-1]))


def _gaps(gaps_s: Floats) -> Waits:
    """A lognormal with the same median and mean, no wider than the gaps are: of a wide one turns would come too late to be there."""
    logs = np.log(np.maximum(gaps_s, LEAST_GAP_S))
    longest_s = np.sort(gaps_s)[-LEAST:].mean()
    median_s, sigma, most_s = (round(float(value), 3) for value in (np.exp(np.median(logs)), logs.std(), longest_s))
    if not 0 < median_s < most_s:
        return FixedWait(most_s)
    low, high = 0.0, sigma
    while high - low > PRECISION:
        sigma = (low + high) / 2
        low, high = (sigma, high) if _mean_of(median_s, sigma, most_s) < gaps_s.mean() else (low, sigma)
    return LognormalWait(median_s, round(high, 3), most_s)


def _mean_of(median_s: float, sigma: float, most_s: float) -> float:
    """Of a lognormal whose values beyond `most_s` are set to it."""
    reach, normal = np.log(most_s / median_s) / sigma, NormalDist()
    within = median_s * np.exp(sigma**2 / 2) * normal.cdf(reach - sigma)
    return float(within + most_s * (1 - normal.cdf(reach)))


def _rank_correlation(first: Ints, second: Ints) -> float:
    """Spearman's, of ranks as they come where lengths are equal; 0 where there is next to none."""
    if len(first) < 3:
        return 0.0
    ranks = np.array([np.argsort(np.argsort(values, kind="stable"), kind="stable") for values in (first, second)])
    found = round(float(np.corrcoef(ranks)[0, 1]), 3)
    return found if abs(found) >= LEAST_CORRELATION else 0.0
