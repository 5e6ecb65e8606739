"""Names of requests and sessions, by row, kept as text: ten million of Python's strings take a gigabyte."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, islice, pairwise
from operator import eq
from typing import overload

import numpy as np
from numpy.typing import NDArray

NAMES_AT_ONCE = 4_096
CODING = "utf-8", "surrogatepass"  # a trace made in memory may have any text


class Names(Sequence[str]):
    """Equal to any sequence of the same names; slices are of the same kind and copy no text."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(map(eq, self, other))

    def __repr__(self) -> str:
        return f"<{len(self):,} names, {self[0]!r} to {self[-1]!r}>" if len(self) else "<no names>"


class RowNames(Names):
    """`r0`, `r1`, ...: names by row for requests that have none."""

    __slots__ = ("_rows",)

    def __init__(self, rows: range) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> "RowNames": ...
    def __getitem__(self, at: int | slice) -> "str | RowNames":
        return RowNames(self._rows[at]) if isinstance(at, slice) else f"r{self._rows[at]}"

    def __iter__(self) -> Iterator[str]:
        return (f"r{row}" for row in self._rows)


class PackedNames(Names):
    """All names as one text; the name of row i is what stands between bounds i and i + 1."""

    __slots__ = ("_bounds", "_text")

    def __init__(self, text: bytearray, bounds: NDArray[np.int64]) -> None:
        self._text = text
        self._bounds = bounds

    @staticmethod
    def of(names: Iterable[str]) -> "PackedNames":
        packer = NamePacker()
        packer.add(names)
        return packer.names()

    def __len__(self) -> int:
        return len(self._bounds) - 1

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> "PackedNames": ...
    def __getitem__(self, at: int | slice) -> "str | PackedNames":
        rows = range(len(self))[at]
        if isinstance(rows, int):
            return self._text[self._bounds[rows] : self._bounds[rows + 1]].decode(*CODING)
        if rows.step == 1:
            return PackedNames(self._text, self._bounds[rows.start : max(rows.start, rows.stop) + 1])
        return PackedNames.of(self[row] for row in rows)

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(map(self._some, range(0, len(self), NAMES_AT_ONCE)))

    def _some(self, first: int) -> Iterator[str]:
        """The names from one on, cut from one text where a byte is a character."""
        bounds = self._bounds[first : first + NAMES_AT_ONCE + 1]
        data = self._text[bounds[0] : bounds[-1]]
        pairs = pairwise((bounds - bounds[0]).tolist())
        if not data.isascii():
            return (data[begin:end].decode(*CODING) for begin, end in pairs)
        text = data.decode()
        return (text[begin:end] for begin, end in pairs)


class NamePacker:
    """Names packed as they come."""

    def __init__(self) -> None:
        self._text = bytearray()
        self._bounds = array("q", [0])

    def add(self, names: Iterable[str]) -> None:
        rest = iter(names)
        while encoded := [name.encode(*CODING) for name in islice(rest, NAMES_AT_ONCE)]:
            self._bounds.extend(islice(accumulate(map(len, encoded), initial=len(self._text)), 1, None))
            self._text += b"".join(encoded)

    def names(self) -> PackedNames:
        return PackedNames(self._text, np.frombuffer(self._bounds, dtype=np.int64))
