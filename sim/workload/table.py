"""A trace file as columns of cells, from CSV, JSON (a line or an item of an array for each row) or Parquet.

Cells are strings from CSV and typed values from the others; rows come in chunks, so that memory stays bounded.
"""

import csv
import io
import json
import re
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar

from sim.errors import TraceError, nearest
from sim.units import MIB
from sim.workload.json_array import array_items
from sim.workload.source import DOCUMENT_KEYS, MAX_LINE_BYTES, MAX_REPORT_BYTES, text_lines

CHUNK_ROWS = 1_024  # small enough that a chunk's cells are still in the processor's cache when they are read
PARQUET_MAGIC = b"PAR1"
MOST_BLANK_LINES = 1_000  # before the first that is not
HEAD_LINES = 1_000  # enough to recognise a report over several lines
LOG_LINE = "line of vLLM's log"
_LOG = re.compile(rb"^(\(\w+ pid=\d+\) )?(DEBUG|INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d ", re.MULTILINE)
T = TypeVar("T")
Row = tuple[int, dict[str, Any]]
"""Where a row stands, and its cells by column."""

csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))  # a prompt's `hash_ids` are one cell


class Chunk(NamedTuple):
    """Some consecutive rows: where each stands in the file, and one sequence of cells a column; arrays are checked numbers."""

    places: Sequence[int]
    cells: Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Sheet:
    """A file's column names and its rows, to be read once. `unit` is what places count: `line`, `row` or `item`.

    `read` makes chunks of at most so many rows. `objects` are the rows of JSON one by one, whose keys may differ. `names` are
    the file's own words for columns that are called otherwise here; `left_out` counts rows that are no requests, by what they are.
    """

    name: str
    columns: tuple[str, ...]
    read: Callable[[int | None], Iterator[Chunk]]
    unit: str = "line"
    limit: int | None = None
    objects: Iterator[Row] | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def chunks(self) -> Iterator[Chunk]:
        return self.read(self.limit)

    @property
    def rows(self) -> Iterator[Row]:
        """Row by row, where rows may be unlike each other."""
        return self.objects or (
            (place, dict(zip(chunk.cells, cells, strict=True)))
            for chunk in self.read(None)
            for place, *cells in zip(chunk.places, *chunk.cells.values(), strict=True)
        )

    def fault(self, place: int, sentence: str) -> TraceError:
        return TraceError(f"{self.name}, {self.unit} {place}: {sentence}")

    def leave_out(self, count: int, why: str, unit: str = "") -> None:
        """So many rows, or other units, that are no requests."""
        if count:
            self.left_out[f"{unit or self.unit}s, {why},"] += count

    def said(self, column: str) -> str:
        """A column as messages call it: by its name in the file."""
        return f"`{self.names.get(column, column)}`"

    def check_columns(self, required: Sequence[str], optional: Sequence[str] = ()) -> None:
        """Raises TraceError when a required column is missing, or one is there that has no meaning."""
        known = [*required, *optional]
        unknown = [column for column in self.columns if column not in known]
        for column in required:
            if column not in self.columns:
                raise self._missing(column, unknown)
        for column in unknown:
            raise TraceError(
                f"{self.name}: the column `{column}` is unknown; remove it, use one of {', '.join(known)}, or say with --columns "
                f"which ones count.{nearest(column, known)}"
            )

    def check_there(self, columns: Iterable[str]) -> None:
        """Raises TraceError for a column that is not there."""
        for column in columns:
            if column not in self.columns:
                raise self._missing(column, self.columns)

    def _missing(self, column: str, others: Sequence[str]) -> TraceError:
        found = ", ".join(self.columns)
        hint = nearest(column, others)
        return TraceError(
            f"{self.name}: the column `{column}` is missing; the columns found are {found}; --columns can say which is which.{hint}"
        )


def open_sheet(stream: io.BufferedReader, name: str, limit: int | None) -> Sheet:
    """Chooses the container by content; chunks have at most `limit` rows."""
    head = stream.peek(4)
    if head[:4] == PARQUET_MAGIC:
        return _parquet_sheet(stream, name, limit)
    if head.removeprefix(BOM_UTF8).lstrip().startswith(b"["):
        return _json_sheet(array_items(stream, name), name, limit, unit="item")
    lines = text_lines(stream, name)
    if _LOG.search(head):
        return _log_sheet(lines, name)
    begun = _to_first_text(lines)
    if not begun:
        raise TraceError(f"{name}: the file is empty; a trace needs at least one request.")
    first = begun[-1].strip()
    rest: Iterator[str] = chain(begun, lines)
    if not first.startswith("{"):
        return _csv_sheet(rest, name, limit)
    return _json_sheet(_json_lines(_report_on_a_line(rest, name) if first == "{" else rest, name), name, limit)


def _report_on_a_line(lines: Iterator[str], name: str) -> Iterator[str]:
    """A report over several lines, as `jq .` prints it, on one; other text stays as it is."""
    head = list(islice(lines, HEAD_LINES))
    if not any(f'"{key}"' in line for key in DOCUMENT_KEYS for line in head):
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
    header = _csv_rows(lines, name)
    place, cells = next(header)
    columns = tuple(column.strip() for column in cells)
    twice = [column for column in columns if columns.count(column) > 1]
    if twice:
        raise TraceError(f"{name}, line {place}: the column `{twice[0]}` stands twice in the header; remove one.")
    return Sheet(name, columns, lambda most: _csv_chunks(lines, place, name, columns, most), limit=limit)


def _csv_chunks(
    lines: Iterator[str], num_before: int, name: str, columns: tuple[str, ...], limit: int | None
) -> Iterator[Chunk]:
    """Lines without a quote are cut at their commas, many at once; from the first that has one on, a CSV reader looks at all."""
    while limit is None or limit > 0:
        block = list(islice(lines, CHUNK_ROWS if limit is None else min(limit, CHUNK_ROWS)))
        if not block:
            return
        plain = _plain_cells(block, len(columns))
        if plain is None:
            yield from _read_chunks(chain(block, lines), num_before, name, columns, limit)
            return
        yield Chunk(range(num_before + 1, num_before + 1 + len(block)), dict(zip(columns, plain, strict=True)))
        num_before += len(block)
        limit = None if limit is None else limit - len(block)


def _plain_cells(lines: list[str], width: int) -> list[list[str]] | None:
    """Column by column; None where there is anything but so many cells a line."""
    text = "".join(lines).replace("\r\n", "\n").removesuffix("\n")
    if '"' in text or "\r" in text or width == 1 or {line.count(",") for line in lines} != {width - 1}:
        return None
    cells = text.replace("\n", ",").split(",")
    return [cells[at::width] for at in range(width)]


def _read_chunks(
    lines: Iterator[str], num_before: int, name: str, columns: tuple[str, ...], limit: int | None
) -> Iterator[Chunk]:
    width = len(columns)
    for places, cells in chunked(_csv_rows(lines, name, num_before), limit):
        if set(map(len, cells)) != {width}:
            place, got = next((place, len(row)) for place, row in zip(places, cells, strict=True) if len(row) != width)
            raise TraceError(
                f"{name}, line {place}: a row must have {width} cells as the header has, got {got}; mend the line."
            )
        yield Chunk(places, dict(zip(columns, zip(*cells, strict=True), strict=True)))


def _csv_rows(lines: Iterator[str], name: str, num_before: int = 0) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(lines, skipinitialspace=True, strict=True)
    try:
        for row in reader:
            if row:
                yield num_before + reader.line_num, row
    except csv.Error as error:
        raise TraceError(
            f"{name}, line {num_before + reader.line_num}: not readable as CSV ({error}); mend the line, or use JSON lines."
        ) from None


def _log_sheet(lines: Iterator[str], name: str) -> Sheet:
    """A log's lines, each a row."""
    rows = ((place, {LOG_LINE: line}) for place, line in enumerate(lines, 1))
    return Sheet(name, (LOG_LINE,), lambda most: _json_chunks(rows, name, (LOG_LINE,), most, "line"), objects=rows)


def _json_lines(lines: Iterator[str], name: str) -> Iterator[Row]:
    return ((place, _json_object(line, name, place)) for place, line in enumerate(lines, 1) if line.strip())


def _json_sheet(rows: Iterator[Row], name: str, limit: int | None, unit: str = "line") -> Sheet:
    first = next(rows)
    columns, objects = tuple(first[1]), chain([first], rows)
    return Sheet(name, columns, lambda most: _json_chunks(objects, name, columns, most, unit), unit, limit, objects)


def _json_chunks(
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
    return Sheet(name, columns, lambda most: _parquet_chunks(file, name, most, ArrowException), "row", limit)


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


def chunked(rows: Iterator[tuple[int, T]], limit: int | None) -> Iterator[tuple[tuple[int, ...], tuple[T, ...]]]:
    """Rows in chunks as (places, rows), `limit` of them at most; Python frees a chunk before it reads the next."""
    wanted = islice(rows, limit)
    while chunk := list(islice(wanted, CHUNK_ROWS)):
        places, cells = zip(*chunk, strict=True)
        yield places, cells
