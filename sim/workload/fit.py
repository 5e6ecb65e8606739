"""A workload that is like a trace, in some hundred numbers: to be given away where the trace may not be.

Requests whose prompt goes on from an earlier one's are turns of a session. The sessions that begin in one period of the trace,
those of one turn, of a few and of more, are a class of clients each: what requests are like changes with the hour, and longer
documents are talked about longer. A class has the rate of its sessions in pieces, the burstiness that is left within these, and
its lengths as histograms, and is drawn with as many sessions in each piece and as many lengths in each bin as it had; what most
sessions of all begin with is a shared prefix. No length, number of turns or rate stands for fewer than LEAST requests or sessions,
and bins begin at lengths that no trace has chosen, unless they are of one length alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from sim.workload.arrivals import Gamma
from sim.workload.columns import Floats, Ints
from sim.workload.conversations import session_numbers
from sim.workload.generate import generate
from sim.workload.lengths import Choice, Histogram
from sim.workload.prefixes import DEFAULT_HASH_BLOCK_SIZE
from sim.workload.rate_curve import Piece, Pieces
from sim.workload.sessions import Flags
from sim.workload.spec import Workload, WorkloadMix, WorkloadSpec
from sim.workload.trace import Segment, Trace
from sim.workload.waits import Exponential, FixedWait, LognormalWait, Waits

REQUESTS_A_PERIOD, MOST_PERIODS = 600, 12
LEAST = 10  # requests, or sessions, that a number in a workload tells of
TICKS_A_PIECE, MOST_PIECES = 20, 480  # the last of the whole trace
BURSTY = 2.0  # times as uneven as Poisson: then there may be twice as many pieces, so that they are the bursts
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
LEAST_SHAPE = 0.02  # of gamma gaps: of fewer all of a piece come at once
NEAR = 0.05  # of two distributions, at most
RESTS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)  # of the trace's duration, behind its last request
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
    goes_with_rest: bool = False


def fit(trace: Trace) -> Workload:
    """Priorities, adapters, stages, think times and classes with their limits are left out; sessions go on at the trace's times."""
    found, classes = _sessions(trace), dict[str, WorkloadSpec]()
    turns = np.bincount(found.session)
    rest_s = _rest_s(trace, found.session)
    begins_s = (trace.arrival_s - trace.arrival_s[0])[np.unique(found.session, return_index=True)[1]]
    for kind, own in _kinds(turns):
        for number, period in enumerate(_periods(trace, begins_s[own], int(turns[own].sum()), rest_s)):
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


def _periods(trace: Trace, begins_s: Floats, num_requests: int, rest_s: float | None) -> Iterator[_Period]:
    """Of sessions that begin then, at least LEAST in each."""
    tick_s = _tick(trace.arrival_s)
    number = int(np.clip(num_requests // REQUESTS_A_PERIOD, 1, MOST_PERIODS)) if trace.duration_s else 1
    lasting_s = round(trace.duration_s + (rest_s or tick_s or 2 * LEAST_GAP_S), 3)
    edges = np.round(np.linspace(0, lasting_s, number + 1), 3)
    begin, done = 0.0, 0
    for end in edges[1:].tolist():
        num_begun = int((begins_s < end).sum())
        left = len(begins_s) - num_begun
        if end == edges[-1] or (num_begun - done >= LEAST <= left):
            yield _Period(begin, end, lasting_s, tick_s, rest_s is not None)
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
    opening = own.prompt_tokens[order][opens][np.cumsum(opens) - 1]
    spec = replace(spec, length_correlation=_rank_correlation(opening, own.output_tokens[order]))
    said = (own.prompt_tokens + own.output_tokens)[order]
    spec = replace(
        spec,
        turns=_turns(session),
        opening_tokens=spec.prompt_tokens,
        prompt_tokens=_histogram(np.maximum(1, own.prompt_tokens[order][later] - said[later - 1])),
    )
    times_s = own.arrival_s[order] - trace.arrival_s[0]
    if period.goes_with_rest:
        gaps = _waits(_of_rest(times_s, later, period.lasting_s), PRECISION)
        return replace(_in_time(spec, begins_s, period), turn_gap_of_rest=gaps)
    spec = replace(spec, turn_gap_s=_waits(np.diff(times_s)[later - 1], LEAST_GAP_S))
    return _as_many(_in_time(spec, begins_s, period)) if trace.duration_s else spec


def _in_time(spec: WorkloadSpec, begins_s: Floats, period: _Period) -> WorkloadSpec:
    """As many requests, of sessions that begin in the period, at the rates and in the bursts of these."""
    edges = _edges(begins_s, period)
    counts, seconds, spread = _counted(begins_s, edges, period)
    if period.tick_s is None and spread > BURSTY:
        edges = _edges(begins_s, period, finer=2)
        counts, seconds, spread = _counted(begins_s, edges, period)
    rates = counts / seconds * (spec.count / len(begins_s))
    pieces = [Piece(_short(rate), lasting) for rate, lasting in zip(rates.tolist(), seconds.tolist(), strict=True)]
    silence = [
        Piece(0.0, lasting) if lasting > 0 else None
        for lasting in (period.begin_s, round(period.lasting_s - float(edges[-1]), 3))
    ]
    return replace(
        spec,
        num_requests=None,
        duration_s=period.lasting_s,
        request_rate=Pieces(tuple(piece for piece in (silence[0], *pieces, silence[1]) if piece)),
        arrivals=_within_pieces(spread, len(begins_s) / len(counts), period),
        exact=True,
        tick_s=period.tick_s,
    )


def _within_pieces(spread: float, sessions: float, period: _Period) -> Gamma:
    """Gamma gaps that are as uneven once a piece of so many sessions is filled by them: then the widest leave the others less."""
    gaps, spread = sessions + 1, max(spread, 1e-3)
    shape = 1 / spread if period.tick_s is not None else ((gaps - 1) / spread - 1) / gaps
    return Gamma(float(np.clip(round(shape, 3), LEAST_SHAPE, 100.0)))


def _counted(begins_s: Floats, edges: Floats, period: _Period) -> tuple[Ints, Floats, float]:
    """Of pieces: sessions that begin in each, how long they last, and how unevenly sessions begin within them."""
    counts, seconds = np.histogram(np.minimum(begins_s, edges[-1]), edges)[0], np.round(np.diff(edges), 3)
    return counts, seconds, _spread_within(begins_s, edges, counts / seconds, period)


def _edges(begins_s: Floats, period: _Period, finer: int = 1) -> Floats:
    """Of the pieces of a rate: with as many sessions in each, so that bursts have short ones; with as many ticks where the clock ticks.

    The last of the former is so long that its sessions begin in the middle of it, in the mean; nothing comes after it.
    """
    span_s = period.end_s - period.begin_s
    most = max(1, round(MOST_PIECES * span_s / period.lasting_s))
    if period.tick_s is not None:
        number = int(np.clip(span_s / period.tick_s // TICKS_A_PIECE, 1, most))
        return _of_enough(np.round(np.linspace(period.begin_s, period.end_s, number + 1), 3), begins_s)
    number = int(np.clip(len(begins_s) // (LEAST + 1), 1, most * finer))
    inner = np.round(np.quantile(begins_s, np.linspace(0, 1, number + 1)[1:-1]), 3)
    edges = _of_enough(np.array([period.begin_s, *inner, period.end_s]), begins_s)
    end_s = round(2 * float(begins_s[begins_s >= edges[-2]].mean()) - edges[-2], 3)
    return np.append(edges[:-1], end_s if edges[-2] < end_s < period.end_s else period.end_s)


def _of_enough(edges: Floats, begins_s: Floats) -> Floats:
    """Without the edges between which fewer than LEAST sessions begin."""
    begun = np.searchsorted(begins_s, edges)
    kept, done = [edges[0]], 0
    for edge, number in zip(edges[1:-1].tolist(), begun[1:-1].tolist(), strict=True):
        if number - done >= LEAST <= len(begins_s) - number:
            kept.append(edge)
            done = number
    return np.array([*kept, edges[-1]])


def _short(rate: float) -> float:
    """In few digits, and not less: the last request must not wait for the first piece to come again."""
    return float(f"{rate * (1 + 6e-6):.6g}")


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


def _of_rest(times_s: Floats, later: Ints, end_s: float) -> Floats:
    """Gaps by how much of what was left they take, as its logarithm."""
    return np.asarray(np.log((end_s - times_s[later - 1]) / (end_s - times_s[later])))


def _rest_s(trace: Trace, session: Ints) -> float | None:
    """How long after the last request the end is that turns come the sooner to the nearer it is; None where gaps do not look to an end.

    It is what makes the gaps most likely, taken as exponential in seconds, or in the logarithm of what is left.
    """
    order = np.lexsort((np.arange(len(trace)), session))
    times_s = trace.arrival_s[order] - trace.arrival_s[0]
    later = np.flatnonzero(np.diff(session[order], prepend=-1) == 0)
    if len(later) < LEAST or _tick(trace.arrival_s) is not None:
        return None
    likely: dict[float | None, float] = {None: -np.log(np.diff(times_s)[later - 1].mean())}
    for share in RESTS:
        end_s = trace.duration_s * (1 + share)
        likely[trace.duration_s * share] = float(
            -np.log(_of_rest(times_s, later, end_s).mean()) - np.log(end_s - times_s[later]).mean()
        )
    return max(likely, key=likely.__getitem__)


def _waits(gaps: Floats, least: float) -> Waits:
    """Exponential where that is near; else a lognormal with the same median and mean, no wider than the gaps are: of a wide one turns would come too late to be there."""
    law = Exponential(round(float(gaps.mean()), 3))
    if law.mean_s and _distance(gaps, law) < NEAR:
        return law
    logs = np.log(np.maximum(gaps, least))
    longest = np.sort(gaps)[-LEAST:].mean()
    median, sigma, most = (round(float(value), 3) for value in (np.exp(np.median(logs)), logs.std(), longest))
    if not 0 < median < most:
        return FixedWait(most)
    low, high = 0.0, sigma
    while high - low > PRECISION:
        sigma = (low + high) / 2
        low, high = (sigma, high) if _mean_of(median, sigma, most) < gaps.mean() else (low, sigma)
    return LognormalWait(median, round(high, 3), most)


def _distance(gaps: Floats, law: Exponential) -> float:
    """Kolmogorov's."""
    below = -np.expm1(-np.sort(gaps) / law.mean_s)
    return float(np.abs(below - np.arange(len(gaps)) / len(gaps)).max())


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
