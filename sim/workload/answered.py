"""Rows of requests that got an answer: logs have those that failed as well, with no output."""

from collections.abc import Iterator

from sim.workload.table import Chunk, Sheet

NOTHING = ("", "0", "0.0", 0, None)


def answered_chunks(sheet: Sheet, output: str) -> Iterator[Chunk]:
    """The chunks without rows whose cell of `output` is 0 or empty; these are counted as left out."""
    for chunk in sheet.chunks:
        kept = [row for row, cell in enumerate(chunk.cells[output]) if cell == cell and cell not in NOTHING]  # noqa: PLR0124 - NaN is nothing
        num_failed = len(chunk.places) - len(kept)
        sheet.leave_out(num_failed, f"with no {sheet.said(output)} (they failed)")
        if kept:
            yield _rows(chunk, kept) if num_failed else chunk


def _rows(chunk: Chunk, rows: list[int]) -> Chunk:
    cells = {name: [column[row] for row in rows] for name, column in chunk.cells.items()}
    return Chunk([chunk.places[row] for row in rows], cells)
