"""Parquet as a sheet, read with pyarrow from the file, or from memory where it comes on a pipe."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sim.errors import TraceError
from sim.workload.table import CHUNK_ROWS, Chunk, Sheet

PARQUET_MAGIC = b"PAR1"


def parquet_sheet(stream: io.BufferedReader, name: str, limit: int | None) -> Sheet:
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
