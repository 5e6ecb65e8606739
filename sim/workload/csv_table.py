"""CSV as a sheet."""

import csv
from collections.abc import Iterator
from itertools import chain, islice

from sim.errors import TraceError
from sim.workload.source import MAX_LINE_BYTES
from sim.workload.table import CHUNK_ROWS, Chunk, Sheet, chunked

csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))  # a prompt's `hash_ids` are one cell


def csv_sheet(lines: Iterator[str], name: str, limit: int | None) -> Sheet:
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
