"""Aligned text tables."""

import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

GAP = 2  # between columns
PIPED_WIDTH = 100
SEPARATOR = re.compile(r"(\s+|(?<=[/_=])(?=\S)|(?<=[a-zA-Z]-)(?=\w))")

Lines = Sequence[str]


class Table(NamedTuple):
    """Rows under a header, to be printed aligned or shown in a notebook."""

    header: Sequence[str]
    rows: Sequence[Sequence[object]]

    def __str__(self) -> str:
        return aligned(self.header, self.rows)


def terminal_width() -> int:
    """Characters a line of the terminal, as COLUMNS or it says; 100 where the output is no terminal."""
    return shutil.get_terminal_size((PIPED_WIDTH, 24)).columns


def aligned(header: Sequence[str], rows: Iterable[Sequence[object]], *, width: int | None = None) -> str:
    """Columns as wide as their widest cell; numbers to the right, text to the left, `-` for None.

    What would be wider than `width`, the terminal's when None, has its texts broken between words, never its numbers; where
    that is not enough, each row becomes a block with a line a column. Nothing is cut off.
    """
    cells = [tuple(header), *(tuple(map(cell_text, row)) for row in rows)]
    columns = [_Column(column) for column in zip(*cells, strict=True)]
    room = (terminal_width() if width is None else width) - GAP * (len(columns) - 1)
    widths = _fitted(columns, room)
    if widths is None:
        return "\n\n".join(_block(cells[0], row) for row in cells[1:])
    return "\n".join(line for row in cells for line in _row_lines(row, columns, widths))


class _Column:
    """How wide a column is by itself, and how narrow it can be without breaking a number or a word."""

    def __init__(self, cells: Sequence[str]) -> None:
        self.is_numeric = all(map(is_figure, cells[1:]))
        self.widest = max(map(len, cells))
        words = [word for cell in cells for word in SEPARATOR.split(cell)]
        self.narrowest = max(map(len, words), default=0)
        if self.is_numeric:
            self.narrowest = max([self.narrowest, *map(len, cells[1:])])


class _Wrapper(textwrap.TextWrapper):
    """Breaks between words, and within names such as `org/model-name` and `max_num_seqs=64` where their parts meet."""

    wordsep_simple_re = SEPARATOR

    def __init__(self, width: int) -> None:
        super().__init__(width, break_long_words=False, break_on_hyphens=False)


def _fitted(columns: Sequence[_Column], room: int) -> list[int] | None:
    """Widths that fit in all: the widest column gives way first; None if words or numbers would have to break."""
    widths = [column.widest for column in columns]
    while sum(widths) > room:
        spare = [(width, place) for place, width in enumerate(widths) if width > columns[place].narrowest]
        if not spare:
            return None
        widths[max(spare)[1]] -= 1
    return widths


def _row_lines(row: Lines, columns: Sequence[_Column], widths: Sequence[int]) -> Iterator[str]:
    broken = [
        _Wrapper(width).wrap(cell) if len(cell) > width else [cell] for cell, width in zip(row, widths, strict=True)
    ]
    for parts in zip_longest(*broken, fillvalue=""):
        drawn = zip(parts, columns, widths, strict=True)
        line = (part.rjust(width) if column.is_numeric else part.ljust(width) for part, column, width in drawn)
        yield (" " * GAP).join(line).rstrip()


def _block(header: Lines, row: Lines) -> str:
    """A row by itself; its first cell stands above the others."""
    first, *others = zip(header, row, strict=True)
    label = max(len(name) for name, _ in others)
    lines = [f"  {name.ljust(label)}  {cell}".rstrip() for name, cell in others]
    return "\n".join([" ".join(word for word in first if word), *lines])


def cell_text(value: object) -> str:
    """As tables show it: thousands grouped, two decimals, `-` for None."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}" if isinstance(value, float) else str(value)


def is_figure(cell: str) -> bool:
    """Whether a cell is aligned to the right."""
    return cell in {"-", "inf"} or cell[:1].isdigit()


def details(facts: Mapping[str, object], indent: str = "") -> str:
    """Each fact on a line of its own, nested ones indented below their name."""
    return "\n".join(
        f"{indent}{name}:\n{details(value, indent + '  ')}"
        if isinstance(value, Mapping)
        else f"{indent}{name}: {_exact(value)}"
        for name, value in facts.items()
    )


def _exact(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else cell_text(value)
