"""Rows of integers in as few bytes as hold them: those of a run are small, or near each other, or all the same.

Columns are narrowed ROWS_AT_ONCE rows at a time. They come back as they were.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sim.engine.columns import Ints

ROWS_AT_ONCE = 4_096
JOINED_AT_ONCE: Final = 64
"""Packed rows, each of which takes more memory by itself, but less time than to be joined by itself."""
Rows = NDArray[Any]  # with a field a column
NOTHING = np.zeros((), dtype=np.uint8)


class Narrow:
    """Integers, at least one, by how far they are above the lowest: no byte for each where that is nothing."""

    __slots__ = ("_above", "_lowest")

    def __init__(self, values: Ints) -> None:
        self._lowest = int(values.min())
        most = int(values.max()) - self._lowest
        self._above: NDArray[Any]
        if most:
            self._above = (values - self._lowest).astype(np.min_scalar_type(most))
        else:
            self._above = np.broadcast_to(NOTHING, (len(values),))

    def __reduce__(self) -> tuple[object, ...]:
        above = self._above if any(self._above.strides) else None
        return _narrow_again, (self._lowest, len(self._above), above)

    def read(self, some: slice | Ints, dtype: DTypeLike) -> Ints:
        """Those in some rows."""
        values = self._above[some].astype(dtype)
        if self._lowest:
            values += self._lowest
        return values


def _narrow_again(lowest: int, count: int, above: NDArray[Any] | None) -> Narrow:
    narrow = Narrow(np.full(1, lowest))
    narrow._above = np.broadcast_to(NOTHING, (count,)) if above is None else above  # noqa: SLF001 - its own constructor
    return narrow


class Shared:
    """Integers that many rows have in common: a table of them, and the place in it of each row."""

    __slots__ = ("_places", "_table")

    def __init__(self, table: Narrow, places: NDArray[Any]) -> None:
        self._table = table
        self._places = places

    def __reduce__(self) -> tuple[object, ...]:
        return Shared, (self._table, self._places)

    def read(self, some: slice | Ints, dtype: DTypeLike) -> Ints:
        """Those in some rows."""
        return self._table.read(self._places[some], dtype)


class NarrowRows:
    """Rows of integers, read a part at a time."""

    def __init__(self, dtype: np.dtype[Any], blocks: Iterable[tuple[int, dict[str, Narrow]]] = ()) -> None:
        self.dtype = dtype
        self.blocks: list[tuple[int, dict[str, Narrow]]] = []
        self._ends = [0]
        for block in blocks:
            self._append(block)

    def __reduce__(self) -> tuple[object, ...]:
        return NarrowRows, (self.dtype, self.blocks)

    @classmethod
    def of(cls, rows: Rows) -> "NarrowRows":
        """These rows."""
        found = cls(rows.dtype)
        for first in range(0, len(rows), ROWS_AT_ONCE):
            found.append(rows[first : first + ROWS_AT_ONCE])
        return found

    @classmethod
    def joined(cls, parts: "list[NarrowRows]") -> "NarrowRows":
        """The rows of several, one after the other, of which none is copied."""
        return cls(parts[0].dtype, (block for part in parts for block in part.blocks))

    def append(self, rows: Rows) -> None:
        """Add rows, at least one."""
        columns = {name: Narrow(np.ascontiguousarray(rows[name])) for name in self.dtype.names or ()}
        self._append((len(rows), columns))

    def _append(self, block: tuple[int, dict[str, Narrow]]) -> None:
        self.blocks.append(block)
        self._ends.append(self._ends[-1] + block[0])

    def __len__(self) -> int:
        return self._ends[-1]

    def part(self, first: int, end: int) -> Rows:
        """Rows `first` to before `end`, as far as there are any."""
        end = min(end, len(self))
        first = min(first, end)
        rows = np.empty(end - first, dtype=self.dtype)
        done, number = 0, bisect_right(self._ends, first) - 1
        while done < len(rows):
            begin = first + done - self._ends[number]
            stop = min(end - self._ends[number], self.blocks[number][0])
            for name, column in self.blocks[number][1].items():
                rows[name][done : done + stop - begin] = column.read(slice(begin, stop), self.dtype[name])
            done, number = done + stop - begin, number + 1
        return rows

    def parts(self, size: int) -> Iterator[Rows]:
        """All rows, so many at a time."""
        for first in range(0, len(self), size):
            yield self.part(first, first + size)


class PackedRows:
    """Rows as they come, packed; the latest stay so, and so many at once are put away."""

    def __init__(self, dtype: np.dtype[Any], rows_at_once: int) -> None:
        self._dtype = dtype
        self._latest = bytearray()
        self._single: list[bytes] = []
        self._most_bytes = rows_at_once * dtype.itemsize

    def add(self, row: bytes) -> None:
        """Record a row."""
        self._single.append(row)
        if len(self._single) == JOINED_AT_ONCE:
            self._join()
            if len(self._latest) >= self._most_bytes:
                self._flush()

    def _join(self) -> None:
        self._latest += b"".join(self._single)
        self._single.clear()

    def _packed(self) -> Rows:
        """The latest."""
        self._join()
        return np.frombuffer(self._latest, dtype=self._dtype)

    def _flush(self) -> None:
        """Put all away."""
        rows = self._packed()
        if len(rows):
            self._put_away(rows)
            self._latest = bytearray()

    def _put_away(self, rows: Rows) -> None:
        raise NotImplementedError


class RowLog(PackedRows):
    """Rows of integers, narrowed when they are put away."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        super().__init__(dtype, ROWS_AT_ONCE)
        self._before = NarrowRows(dtype)

    def rows(self) -> NarrowRows:
        """All rows."""
        self._flush()
        return self._before

    def _put_away(self, rows: Rows) -> None:
        self._before.append(rows)
