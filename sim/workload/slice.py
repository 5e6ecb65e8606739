"""A part of a trace, on the trace's own clock."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sim.errors import ConfigError, TraceError
from sim.workload.conversations import session_numbers
from sim.workload.trace import Trace

Flags = NDArray[np.bool_]


def slice_trace(
    trace: Trace,
    *,
    from_s: float | None = None,
    to_s: float | None = None,
    limit: int | None = None,
    whole_sessions: bool = False,
) -> Trace:
    """The first `limit` of the requests that arrive from `from_s` until before `to_s`, at the times that they have.

    A session that goes on beyond is cut; with `whole_sessions` those that begin in the slice are there with all their turns, and of
    others none. The notes say what became of sessions. Raises TraceError where nothing is left, ConfigError for a bad bound.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"`limit` must be at least 1 request, got {limit}; leave it out to keep all.")
    begin_s, end_s = -math.inf if from_s is None else from_s, math.inf if to_s is None else to_s
    if not begin_s < end_s:
        raise ConfigError(f"`from_s` must be below `to_s`, got {begin_s:g} and {end_s:g}; swap them.")
    begin, end = np.searchsorted(trace.arrival_s, (begin_s, end_s), side="left").tolist()
    end = end if limit is None else min(end, begin + limit)
    if begin >= end:
        bounds = ("" if from_s is None else f" from {from_s:g} s on") + ("" if to_s is None else f" before {to_s:g} s")
        raise TraceError(
            f"{trace.source or 'the trace'}: must have a request in the slice, got none{bounds}; its requests arrive from "
            f"{trace.arrival_s[0]:g} s to {trace.arrival_s[-1]:g} s."
        )
    if trace.session_id is None:
        if whole_sessions:
            raise ConfigError("`whole_sessions` is for traces with sessions, got one without; leave it out.")
        return trace.part(begin, end)
    rows = np.arange(len(trace))
    within = (begin <= rows) & (rows < end)
    return _with_sessions(trace, trace.session_id, within, whole=whole_sessions)


def _with_sessions(trace: Trace, session_id: Sequence[str], within: Flags, *, whole: bool) -> Trace:
    sessions = session_numbers(session_id)
    first_turns = np.unique(sessions, return_index=True)[1]
    begins_within = within[first_turns][sessions]
    kept = begins_within if whole else within
    if not kept.any():
        raise TraceError(
            f"{trace.source or 'the trace'}: must have a session that begins in the slice, got none; take a longer one, or leave out `whole_sessions`."
        )
    cut = np.intersect1d(sessions[within], sessions[~within])
    if not len(cut):
        note = "no session goes on beyond the slice."
    elif whole:
        note = (
            f"sessions are kept whole: {int((kept & ~within).sum()):,} later turns of those that begin in the slice are there, "
            f"{int((within & ~kept).sum()):,} turns of others are not."
        )
    else:
        note = f"{len(cut):,} of {len(np.unique(sessions[within])):,} sessions are cut: their turns beyond the slice are not there."
    return replace(trace.rows(np.flatnonzero(kept)), notes=(*trace.notes, note))
