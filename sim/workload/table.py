"""A trace file as columns of cells, from CSV, JSON lines or Parquet.

Cells are strings from CSV and typed values from the others; rows come in chunks, so that memory stays bounded.
"""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar

from sim.errors import TraceError, nearest
from sim.units import MIB
from sim.workload.source import MAX_LINE_BYTES, MAX_REPORT_BYTES, REPORT_KEYS, text_lines

CHUNK_ROWS = 1_024  # small enough that a chunk's cells are still in the processor's cache when they are read
PARQUET_MAGIC = b"PAR1"
MOST_BLANK_LINES = 1_000  # before the first that is not
HEAD_LINES = 1_000  # enough to recognise a report over several lines
T = TypeVar("T")

csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))  # a prompt's `hash_ids` are one cell


class Chunk(NamedTuple):
    """Some consecutive rows: where each stands in the file, and one sequence of cells a column."""

    places: Sequence[int]
    cells: dict[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Sheet:
    """A file's column names and its rows, to be read once. `unit` is what places count: `line` or `row`."""

    name: str
    columns: tuple[str, ...]
    chunks: Iterator[Chunk]
    unit: str = "line"

    def fault(self, place: int, sentence: str) -> TraceError:
        return TraceError(f"{self.name}, {self.unit} {place}: {sentence}")

    def check_columns(self, required: Sequence[str], optional: Sequence[str] = ()) -> None:
        """Raises TraceError when a required column is missing, or one is there that has no meaning."""
        known = [*required, *optional]
        unknown = [column for column in self.columns if column not in known]
        for column in required:
            if column not in self.columns:
                found = ", ".join(self.columns)
                hint = nearest(column, unknown)
                raise TraceError(f"{self.name}: the column `{column}` is missing; the columns found are {found}.{hint}")
        for column in unknown:
            raise TraceError(
                f"{self.name}: the column `{column}` is unknown; remove it, or use one of {', '.join(known)}.{nearest(column, known)}"
            )


def open_sheet(stream: io.BufferedReader, name: str, limit: int | None) -> Sheet:
    """Chooses the container by content; at most `limit` rows are read."""
    if stream.peek(4)[:4] == PARQUET_MAGIC:
        return _parquet_sheet(stream, name, limit)
    lines = text_lines(stream, name)
    head = _to_first_text(lines)
    if not head:
        raise TraceError(f"{name}: the file is empty; a trace needs at least one request.")
    first = head[-1].lstrip()
    if first.startswith("["):
        raise TraceError(
            f"{name}: a JSON array is no trace format; write one JSON object a line (as `jq -c '.[]'` does)."
        )
    rest: Iterator[str] = chain(head, lines)
    if first.rstrip() == "{":
        rest = _report_on_a_line(rest, name)
    return (_json_sheet if first.startswith("{") else _csv_sheet)(rest, name, limit)


def _report_on_a_line(lines: Iterator[str], name: str) -> Iterator[str]:
    """A report over several lines, as `jq .` prints it, on one; other text stays as it is."""
    head = list(islice(lines, HEAD_LINES))
    if not any(f'"{key}"' in line for key in REPORT_KEYS for line in head):
        return chain(head, lines)
    text = io.StringIO()
    for line in chain(head, lines):
        if text.write(line) and text.tell() > MAX_REPORT_BYTES:
            raise TraceError(f"{name}: a report must have no more than {MAX_REPORT_BYTES // MIB:,} MiB; is it one?")
    return iter([text.getvalue()])


def _to_first_text(lines: Iterator[str]) -> list[str]:
    """Lines up to and including the first that is not blank."""
    head = []
    for line in islice(lines, MOST_BLANK_LINES):
        head.append(line)
        if line.strip():
            return head
    return []


def _csv_sheet(lines: Iterator[str], name: str, limit: int | None) -> Sheet:
    rows = _csv_rows(lines, name)
    place, header = next(rows)
    columns = tuple(column.strip() for column in header)
    twice = [column for column in columns if columns.count(column) > 1]
    if twice:
        raise TraceError(f"{name}, line {place}: the column `{twice[0]}` stands twice in the header; remove one.")

    return Sheet(name, columns, _csv_chunks(rows, name, columns, limit))


def _csv_chunks(
    rows: Iterator[tuple[int, list[str]]], name: str, columns: tuple[str, ...], limit: int | None
) -> Iterator[Chunk]:
    width = len(columns)
    for places, cells in _chunked(rows, limit):
        if set(map(len, cells)) != {width}:
            place, got = next((place, len(row)) for place, row in zip(places, cells, strict=True) if len(row) != width)
            raise TraceError(
                f"{name}, line {place}: a row must have {width} cells as the header has, got {got}; mend the line."
            )
        yield Chunk(places, dict(zip(columns, zip(*cells, strict=True), strict=True)))


def _csv_rows(lines: Iterator[str], name: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(lines, skipinitialspace=True, strict=True)
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise TraceError(
            f"{name}, line {reader.line_num}: not readable as CSV ({error}); mend the line, or use JSON lines."
        ) from None


def _json_sheet(lines: Iterator[str], name: str, limit: int | None) -> Sheet:
    rows = ((place, _json_object(line, name, place)) for place, line in enumerate(lines, 1) if line.strip())
    first = next(rows)
    columns = tuple(first[1])
    return Sheet(name, columns, _json_chunks(chain([first], rows), name, columns, limit))


def _json_chunks(
    rows: Iterator[tuple[int, dict[str, Any]]], name: str, columns: tuple[str, ...], limit: int | None
) -> Iterator[Chunk]:
    keys = set(columns)
    for places, objects in _chunked(rows, limit):
        for place, row in zip(places, objects, strict=True):
            if row.keys() != keys:
                raise TraceError(f"{name}, line {place}: {_key_difference(keys, set(row))}")
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


def _parquet_sheet(stream: io.BufferedReader, name: str, limit: int | None) -> Sheet:
    try:
        from pyarrow import ArrowException, BufferReader
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise TraceError(
            f"{name}: reading Parquet needs pyarrow; install `servecast[parquet]`, or convert the trace to CSV."
        ) from None
    with _parquet_faults(name, ArrowException):
        is_file = isinstance(stream.raw, io.FileIO) and stream.seekable()
        file = ParquetFile(stream if is_file else BufferReader(stream.read()))
        columns = tuple(file.schema_arrow.names)
    if twice := [column for column in columns if columns.count(column) > 1]:
        raise TraceError(f"{name}: the column `{twice[0]}` is there twice; remove one.")
    return Sheet(name, columns, _parquet_chunks(file, name, limit, ArrowException), unit="row")


def _parquet_chunks(file: Any, name: str, limit: int | None, fault: type[Exception]) -> Iterator[Chunk]:
    rows = 0
    batches = file.iter_batches(CHUNK_ROWS)
    while limit is None or rows < limit:
        with _parquet_faults(name, fault):
            batch = next(batches, None)
            cells = batch and batch.slice(0, None if limit is None else limit - rows).to_pydict()
        if not cells:
            return
        num_rows = len(next(iter(cells.values())))
        yield Chunk(range(rows + 1, rows + num_rows + 1), cells)
        rows += num_rows


@contextmanager
def _parquet_faults(name: str, fault: type[Exception]) -> Iterator[None]:
    """One sentence for what Arrow cannot read, and for values that Python has no type for."""
    try:
        yield
    except (fault, OSError, ValueError, OverflowError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise TraceError(f"{name}: not readable as Parquet ({reason}); write the file again.") from None


def _chunked(rows: Iterator[tuple[int, T]], limit: int | None) -> Iterator[tuple[tuple[int, ...], tuple[T, ...]]]:
    """Rows in chunks as (places, rows), `limit` of them at most; Python frees a chunk before it reads the next."""
    wanted = islice(rows, limit)
    while chunk := list(islice(wanted, CHUNK_ROWS)):
        places, cells = zip(*chunk, strict=True)
        yield places, cells
