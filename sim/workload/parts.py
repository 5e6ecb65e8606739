"""Parts of a trace, as the format readers make them, and the trace put together and checked as a whole."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from sim.errors import TraceError
from sim.workload.columns import Floats, Ints
from sim.workload.sheet import Sheet
from sim.workload.trace import Segment, Trace


@dataclass(frozen=True, slots=True)
class Part:
    """Some consecutive requests and where each stands in the file; a column that the file lacks is None."""

    places: Ints
    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    request_id: list[str] | None = None
    priority: Ints | None = None
    session_id: list[str] | None = None
    segments: list[tuple[Segment, ...]] | None = None


def assemble(sheet: Sheet, parts: Iterable[Part], form: str) -> Trace:
    """One trace from its parts. Raises TraceError when nothing is there, times fall or ids repeat."""
    parts = list(parts)
    if not parts:
        raise TraceError(f"{sheet.name}: there is a header and no request; a trace needs at least one.")
    places = np.concatenate([part.places for part in parts])
    arrival_s = np.concatenate([part.arrival_s for part in parts])
    _check_order(sheet, places, arrival_s)
    request_id = _joined(parts, lambda part: part.request_id)
    if request_id is None:
        request_id = tuple(f"r{index}" for index in range(len(arrival_s)))
    else:
        _check_unique(sheet, places, request_id)
    priorities = [part.priority for part in parts if part.priority is not None]
    return Trace(
        request_id=request_id,
        arrival_s=arrival_s,
        prompt_tokens=np.concatenate([part.prompt_tokens for part in parts]),
        output_tokens=np.concatenate([part.output_tokens for part in parts]),
        priority=np.concatenate(priorities) if priorities else None,
        session_id=_joined(parts, lambda part: part.session_id),
        segments=_joined(parts, lambda part: part.segments),
        source=sheet.name,
        format=form,
    )


def _joined(parts: list[Part], column: Callable[[Part], list[Any] | None]) -> tuple[Any, ...] | None:
    columns = [values for part in parts if (values := column(part)) is not None]
    return tuple(chain.from_iterable(columns)) if columns else None


def _check_order(sheet: Sheet, places: Ints, arrival_s: Floats) -> None:
    falls = np.flatnonzero(np.diff(arrival_s) < 0)
    if len(falls):
        before, row = int(falls[0]), int(falls[0]) + 1
        raise sheet.fault(
            int(places[row]),
            f"requests must stand in order of arrival, got one {arrival_s[before] - arrival_s[row]:.6g} s before that of "
            f"{sheet.unit} {places[before]}; sort the file by time.",
        )


def _check_unique(sheet: Sheet, places: Ints, request_id: tuple[str, ...]) -> None:
    if len(set(request_id)) == len(request_id):
        return
    seen: dict[str, int] = {}
    for row, name in enumerate(request_id):
        if name in seen:
            first = f"{sheet.unit} {places[seen[name]]}"
            raise sheet.fault(int(places[row]), f"`request_id` must be unique, got {name!r} as in {first}; rename one.")
        seen[name] = row
