"""A table whose columns have other names, read as a native trace: `arrival=ts:ms,prompt=usage.prompt_tokens,output=tokens_out`.

A native field stands before `=`, the file's column behind it, in JSON also a key within a key. A time may have a unit; without
one it is in seconds, or a time stamp. Arrivals count from the first request.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sim.errors import ConfigError, nearest
from sim.workload.answered import answered_chunks
from sim.workload.columns import second_column
from sim.workload.native import COLUMNS, NATIVE, OPTIONAL
from sim.workload.stamps import NS_PER_S, stamp_column
from sim.workload.table import Chunk, Row, Sheet, chunked
from sim.workload.trace_builder import Format, Part

SHORT = {"arrival": "arrival_s", "prompt": "prompt_tokens", "output": "output_tokens", "session": "session_id"}
LENGTHS = ("prompt_tokens", "output_tokens")
TIMES = ("arrival_s", "think_time_s", "hold_s")
UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
ABSENT = object()
FORM = "arrival=COLUMN[:UNIT],prompt=COLUMN,output=COLUMN[,session=COLUMN,...]"


class Source(NamedTuple):
    """Where a native field is found; the unit of a time, None where the cells show it."""

    column: str
    unit_s: float | None = None


Columns = str | Mapping[str, str]
"""As on the command line, or fields with the columns that they are in."""


def parse_columns(given: Columns) -> dict[str, Source]:
    """The source of each native field. Raises ConfigError for an unknown field, one given twice, and for one that is missing."""
    pairs = given.items() if isinstance(given, Mapping) else [_pair(text) for text in given.split(",")]
    found: dict[str, Source] = {}
    for name, column in pairs:
        field = SHORT.get(name, name)
        known = [*SHORT, *COLUMNS, *OPTIONAL]
        if field not in known:
            raise ConfigError(f"`columns` has no field {name}; name one of {', '.join(known)}.{nearest(name, known)}")
        if field in found:
            raise ConfigError(f"`columns` must name each field once, got {name} again; leave one of them out.")
        found[field] = _source(field, column)
    for field in COLUMNS:
        if field not in found:
            raise ConfigError(f"`columns` must say where `{field}` is, as {FORM}; add it.")
    return found


def _pair(text: str) -> tuple[str, str]:
    field, equals, column = text.partition("=")
    if not (field.strip() and equals and column.strip()):
        raise ConfigError(f"`columns` must be {FORM}, got {text.strip() or 'nothing'!r} in a place.")
    return field.strip(), column.strip()


def _source(field: str, column: str) -> Source:
    name, colon, unit = column.rpartition(":")
    if field in TIMES and colon and unit in UNITS:
        return Source(name, UNITS[unit])
    return Source(column)


def by_columns(columns: Mapping[str, Source]) -> Format:
    """The format of tables with those columns."""
    return Format("by columns", (), partial(_parts, columns), row_is_request=False, from_first=True)


def _parts(columns: Mapping[str, Source], sheet: Sheet) -> Iterator[Part]:
    own = _renamed(sheet, columns)
    chunks = _in_native_units(own, answered_chunks(own, "output_tokens"), columns)
    return NATIVE.parts(replace(own, read=lambda _: chunks))


def _renamed(sheet: Sheet, columns: Mapping[str, Source]) -> Sheet:
    """Those columns alone, under the native names."""
    names = {field: source.column for field, source in columns.items()}
    if sheet.objects is not None:
        rows = _picked(sheet, sheet.objects, names)
        read = partial(_object_chunks, rows, tuple(names))
    else:
        sheet.check_there(names.values())
        read = partial(_column_chunks, sheet, names)
    return replace(sheet, columns=tuple(names), read=read, names=names)


def _column_chunks(sheet: Sheet, names: Mapping[str, str], limit: int | None) -> Iterator[Chunk]:
    for places, cells in sheet.read(limit):
        yield Chunk(places, {field: cells[column] for field, column in names.items()})


def _object_chunks(rows: Iterator[tuple[int, list[Any]]], fields: Sequence[str], limit: int | None) -> Iterator[Chunk]:
    for places, cells in chunked(rows, limit):
        yield Chunk(places, dict(zip(fields, zip(*cells, strict=True), strict=True)))


def _picked(sheet: Sheet, rows: Iterator[Row], names: Mapping[str, str]) -> Iterator[tuple[int, list[Any]]]:
    """The cells of JSON's rows, whose other keys may differ; a request that failed may lack any."""
    for place, row in rows:
        cells = {field: _cell(row, column) for field, column in names.items()}
        failed = cells["output_tokens"] is ABSENT
        for field, cell in cells.items():
            if cell is ABSENT and not failed:
                found = ", ".join(map(str, list(row)[:20]))
                hint = nearest(names[field], list(row))
                raise sheet.fault(place, f"there is no `{names[field]}`; the keys are {found}.{hint}")
        yield place, [None if cell is ABSENT else cell for cell in cells.values()]


def _cell(row: Mapping[str, Any], column: str) -> Any:
    """What stands under a key, or under a key within a key."""
    if column in row:
        return row[column]
    value: Any = row
    for key in column.split("."):
        if not isinstance(value, dict) or key not in value:
            return ABSENT
        value = value[key]
    return value


def _in_native_units(sheet: Sheet, chunks: Iterator[Chunk], columns: Mapping[str, Source]) -> Iterator[Chunk]:
    """Times as numbers of seconds, time stamps since the first of them, and lengths without a point."""
    first_ns: int | None = None
    for chunk in chunks:
        cells: dict[str, Any] = {**chunk.cells} | {field: _whole(chunk.cells[field]) for field in LENGTHS}
        for field in TIMES:
            if field not in columns:
                continue
            unit_s = columns[field].unit_s
            if unit_s is None and field == "arrival_s" and not _is_number(cells[field][0]):
                stamps = stamp_column(sheet, chunk, field)
                first_ns = int(stamps[0]) if first_ns is None else first_ns
                cells[field] = (stamps - first_ns) / NS_PER_S
            else:
                cells[field] = second_column(sheet, chunk, field, unit_s or 1.0)
        yield Chunk(chunk.places, cells)


def _whole(cells: Sequence[Any]) -> Sequence[Any]:
    """Whole numbers as integers: pandas puts a point into those of a column with gaps."""
    if not any(isinstance(cell, float) or (isinstance(cell, str) and "." in cell) for cell in cells):
        return cells
    return [int(float(cell)) if _is_number(cell) and float(cell).is_integer() else cell for cell in cells]


def _is_number(cell: Any) -> bool:
    try:
        return bool(np.isfinite(float(cell)))
    except (TypeError, ValueError, OverflowError):
        return False
