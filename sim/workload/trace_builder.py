"""Parts of a trace, as the format readers make them, and the trace put together and checked as a whole."""

from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from sim.errors import TraceError
from sim.workload.columns import Floats, Ints
from sim.workload.names import NamePacker, RowNames
from sim.workload.slo_columns import numbered
from sim.workload.table import Sheet
from sim.workload.trace import Segment, Trace, line_numbers, picked, unlike_limits

NAMES = ("request_id", "lora_name", "session_id", "slo_class", "slo")


class Part(NamedTuple):
    """Some consecutive requests and where each stands in the file; a column that the file lacks is None."""

    places: Ints
    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    request_id: list[str] | None = None
    n: Ints | None = None
    priority: Ints | None = None
    lora_name: list[str] | None = None
    session_id: list[str] | None = None
    think_time_s: Floats | None = None
    hold_s: Floats | None = None
    stage: Ints | None = None
    line: Ints | None = None
    max_concurrency: Ints | None = None
    acceptance_length: Floats | None = None
    slo_class: list[str] | None = None
    slo: list[str] | None = None
    segments: list[tuple[Segment, ...]] | None = None


class Format(NamedTuple):
    """A way to write traces: a sheet with one of the columns `marks` is read as its `parts`.

    These raise TraceError with the line of the first cell that is wrong. Where a row is a request, a limit on requests is one
    on rows. Requests that stand in another order than that of arrival are put in order. Times that count from elsewhere count
    from the first request. `note` says what all such files leave open.
    """

    name: str
    marks: Collection[str]
    parts: Callable[[Sheet], Iterator[Part]]
    row_is_request: bool = True
    in_order: bool = True
    from_first: bool = False
    note: str = ""


def assemble(sheet: Sheet, form: Format, limit: int | None = None) -> Trace:
    """The first requests in a sheet of that format. Raises TraceError when nothing is there, times fall or ids repeat."""
    rows_only = sheet if form.row_is_request else replace(sheet, limit=None)
    columns = _joined(form.parts(rows_only), limit if form.in_order else None)
    if not columns:
        raise TraceError(_nothing(sheet))
    if not form.in_order:
        columns = _put_in_order(columns)
    places, arrival_s = columns.pop("places"), columns["arrival_s"]
    _check_order(sheet, places, arrival_s)
    if "stage" in columns:
        _check_stages(sheet, places, columns["stage"])
    if "max_concurrency" in columns:
        _check_limits(sheet, places, columns)
    if "request_id" in columns:
        _check_unique(sheet, places, columns["request_id"])
    else:
        columns["request_id"] = RowNames(range(len(arrival_s)))
    if form.from_first:
        columns["arrival_s"] = arrival_s - arrival_s[0]
    _number_classes(sheet, places, columns)
    trace = Trace(**columns, source=sheet.name, format=form.name, notes=tuple(_notes(sheet, form)))
    return trace if limit is None else trace.first(limit)


def assemble_in_parts(sheet: Sheet, form: Format, at_once: int) -> Iterator[Trace]:
    """All requests, about so many at once. Whether names repeat is not looked at: that would take remembering all. Raises as `assemble`."""
    parts, num_before, begin_s = form.parts(sheet), 0, None
    while columns := _joined(parts, at_once):
        places, arrival_s = columns.pop("places"), columns["arrival_s"]
        _check_order(sheet, places, arrival_s)
        begin_s = float(arrival_s[0]) if begin_s is None else begin_s
        columns["arrival_s"] = arrival_s - begin_s if form.from_first else arrival_s
        columns.setdefault("request_id", RowNames(range(num_before, num_before + len(arrival_s))))
        _number_classes(sheet, places, columns)
        yield Trace(**columns, source=sheet.name, format=form.name, notes=tuple(_notes(sheet, form)))
        num_before += len(arrival_s)
    if not num_before:
        raise TraceError(_nothing(sheet))


def _nothing(sheet: Sheet) -> str:
    if not sheet.left_out:
        return f"{sheet.name}: there is a header and no request; a trace needs at least one."
    what, count = sheet.left_out.most_common(1)[0]
    return f"{sheet.name}: a trace needs at least one request, got none: {count:,} of its {what} do not count; check the file."


def _notes(sheet: Sheet, form: Format) -> Iterator[str]:
    for what, count in sheet.left_out.items():
        yield f"{sheet.name}: {count:,} of its {what} {'is' if count == 1 else 'are'} left out."
    if form.note:
        yield f"{sheet.name}: {form.note}."


def _joined(parts: Iterable[Part], most: int | None) -> dict[str, Any]:
    """The columns that are there, each grown as parts come: thousands of parts, kept till the end, leave holes in memory."""
    numbers: dict[str, Any] = {}
    names: dict[str, NamePacker] = defaultdict(NamePacker)
    segments: list[tuple[Segment, ...]] = []
    for part in parts:
        for name, column in part._asdict().items():
            if isinstance(column, np.ndarray):
                numbers.setdefault(name, array(column.dtype.char)).frombytes(column.tobytes())
            elif name in NAMES and column is not None:
                names[name].add(column)
        segments.extend(part.segments or ())
        if most is not None and len(numbers["places"]) >= most:
            break
    found: dict[str, Any] = {name: np.asarray(column) for name, column in numbers.items()}
    found |= {name: packed.names() for name, packed in names.items()}
    return found | ({"segments": tuple(segments)} if segments else {})


def _number_classes(sheet: Sheet, places: Ints, columns: dict[str, Any]) -> None:
    """Classes and their limits stand row by row in a file."""
    if "slo_class" in columns:
        classes = numbered(sheet, places, columns["slo_class"], columns.pop("slo", None))
        columns["slo_class"], columns["slo_classes"] = classes


def _put_in_order(columns: dict[str, Any]) -> dict[str, Any]:
    """All columns by time of arrival."""
    order = np.argsort(columns["arrival_s"], kind="stable")
    return {name: picked(column, order) for name, column in columns.items()}


def _check_order(sheet: Sheet, places: Ints, arrival_s: Floats) -> None:
    falls = np.flatnonzero(np.diff(arrival_s) < 0)
    if len(falls):
        before, row = int(falls[0]), int(falls[0]) + 1
        raise sheet.fault(
            int(places[row]),
            f"requests must stand in order of arrival, got one {arrival_s[before] - arrival_s[row]:.6g} s before that of "
            f"{sheet.unit} {places[before]}; sort the file by time.",
        )


def _check_stages(sheet: Sheet, places: Ints, stage: Ints) -> None:
    falls = np.flatnonzero(np.diff(stage) < 0)
    if len(falls):
        row = int(falls[0]) + 1
        raise sheet.fault(
            int(places[row]),
            f"`stage` must not fall from one request to the next, got {stage[row]} after {stage[row - 1]}; number stages in order.",
        )


def _check_limits(sheet: Sheet, places: Ints, columns: dict[str, Any]) -> None:
    limits = columns["max_concurrency"]
    unlike = unlike_limits(line_numbers(len(limits), columns.get("stage"), columns.get("line")), limits)
    if unlike:
        row, first = unlike
        raise sheet.fault(
            int(places[row]),
            f"`max_concurrency` must be one in all requests of a `stage` and `line`, got {limits[row]} after {limits[first]} in "
            f"{sheet.unit} {places[first]}; correct it, or give the request a line of its own.",
        )


def _check_unique(sheet: Sheet, places: Ints, request_id: Sequence[str]) -> None:
    """Of names whose hashes are unique there is no need to look at any."""
    ordered = _hashes(request_id)
    ordered.sort()
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(repeated):
        return
    seen: dict[str, int] = {}
    for row in np.flatnonzero(np.isin(_hashes(request_id), repeated)).tolist():
        name = request_id[row]
        if name in seen:
            first = f"{sheet.unit} {places[seen[name]]}"
            raise sheet.fault(int(places[row]), f"`request_id` must be unique, got {name!r} as in {first}; rename one.")
        seen[name] = row


def _hashes(names: Sequence[str]) -> Ints:
    return np.fromiter(map(hash, names), dtype=np.int64, count=len(names))
