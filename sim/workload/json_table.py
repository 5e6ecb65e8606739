"""JSON as a sheet: an object a line, the items of an array, or one document over many lines."""

import io
import json
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

from sim.errors import TraceError
from sim.units import MIB
from sim.workload.source import DOCUMENT_KEYS, MAX_REPORT_BYTES
from sim.workload.table import CHUNK_ROWS, Chunk, Row, Sheet, chunked

MAX_AT_ONCE = MIB  # characters of JSON lines that are read as one text
HEAD_LINES = 1_000  # enough to recognise a document


def json_lines(lines: Iterator[str], name: str) -> Iterator[Row]:
    num_before = 0
    while block := list(islice(lines, CHUNK_ROWS)):
        objects = _objects_at_once(block)
        if objects is None:
            places = enumerate(block, num_before + 1)
            yield from ((place, _json_object(line, name, place)) for place, line in places if line.strip())
        else:
            yield from enumerate(objects, num_before + 1)
        num_before += len(block)


def _objects_at_once(lines: list[str]) -> list[dict[str, Any]] | None:
    """The objects of short lines; None where a line is anything else than one."""
    if sum(map(len, lines)) > MAX_AT_ONCE:
        return None
    try:
        found: list[dict[str, Any]] = json.loads(f"[{','.join(lines)}]")
    except (ValueError, RecursionError):
        return None
    return found if len(found) == len(lines) and set(map(type, found)) == {dict} else None


def json_sheet(rows: Iterator[Row], name: str, limit: int | None, unit: str = "line") -> Sheet:
    first = next(rows)
    columns, objects = tuple(first[1]), chain([first], rows)
    return Sheet(name, columns, lambda most: json_chunks(objects, name, columns, most, unit), unit, limit, objects)


def json_chunks(
    rows: Iterator[Row], name: str, columns: tuple[str, ...], limit: int | None, unit: str
) -> Iterator[Chunk]:
    keys = set(columns)
    for places, objects in chunked(rows, limit):
        for place, row in zip(places, objects, strict=True):
            if row.keys() != keys:
                raise TraceError(f"{name}, {unit} {place}: {_key_difference(keys, set(row))}")
        yield Chunk(places, {column: [row[column] for row in objects] for column in columns})


def _key_difference(expected: set[str], got: set[str]) -> str:
    differing = min(expected ^ got)
    verb = "lacks" if differing in expected else "has"
    return f"every object must have the keys of the first one, and this one {verb} `{differing}`; give all rows the same keys."


def _json_object(line: str, name: str, place: int) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TraceError(
            f"{name}, line {place}: not a complete JSON object ({error}); write one object a line."
        ) from None
    if not isinstance(value, dict):
        raise TraceError(
            f"{name}, line {place}: a line must be a JSON object, got {type(value).__name__}; write one object a line."
        )
    return value


def document_on_a_line(lines: Iterator[str], name: str) -> Iterator[str]:
    """A report over several lines, as `jq .` prints it, on one; other text stays as it is."""
    head = list(islice(lines, HEAD_LINES))
    if not any(f'"{key}"' in line for key in DOCUMENT_KEYS for line in head):
        return chain(head, lines)
    text = io.StringIO()
    for line in chain(head, lines):
        if text.write(line) and text.tell() > MAX_REPORT_BYTES:
            raise TraceError(f"{name}: a report must have no more than {MAX_REPORT_BYTES // MIB:,} MiB; is it one?")
    return iter([text.getvalue()])
