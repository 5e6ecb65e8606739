"""Parts of a trace, as the format readers make them, and the trace put together and checked as a whole."""

from array import array
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from sim.errors import TraceError
from sim.workload.columns import Floats, Ints
from sim.workload.table import Sheet
from sim.workload.trace import Segment, Trace


class Part(NamedTuple):
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
    columns = _joined(parts)
    if not columns:
        raise TraceError(f"{sheet.name}: there is a header and no request; a trace needs at least one.")
    places, arrival_s = columns.pop("places"), columns["arrival_s"]
    _check_order(sheet, places, arrival_s)
    if "request_id" in columns:
        _check_unique(sheet, places, columns["request_id"])
    else:
        columns["request_id"] = tuple(f"r{index}" for index in range(len(arrival_s)))
    return Trace(**columns, source=sheet.name, format=form)


def _joined(parts: Iterable[Part]) -> dict[str, Any]:
    """The columns that are there, each grown as parts come: thousands of parts, kept till the end, leave holes in memory."""
    grown: dict[str, Any] = {}
    for part in parts:
        for name, column in part._asdict().items():
            if isinstance(column, np.ndarray):
                grown.setdefault(name, array(column.dtype.char)).frombytes(column.tobytes())
            elif column is not None:
                grown.setdefault(name, []).extend(column)
    return {name: np.asarray(column) if isinstance(column, array) else tuple(column) for name, column in grown.items()}


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
