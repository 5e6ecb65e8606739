"""A trace file as columns of cells, or as rows that may be unlike each other.

Cells are strings from CSV and typed values from the others; rows come in chunks, so that memory stays bounded.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from sim.errors import TraceError, nearest

CHUNK_ROWS = 1_024  # small enough that a chunk's cells are still in the processor's cache when they are read
T = TypeVar("T")
Row = tuple[int, dict[str, Any]]
"""Where a row stands, and its cells by column."""


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


def chunked(rows: Iterator[tuple[int, T]], limit: int | None) -> Iterator[tuple[tuple[int, ...], tuple[T, ...]]]:
    """Rows in chunks as (places, rows), `limit` of them at most; Python frees a chunk before it reads the next."""
    wanted = islice(rows, limit)
    while chunk := list(islice(wanted, CHUNK_ROWS)):
        places, cells = zip(*chunk, strict=True)
        yield places, cells
