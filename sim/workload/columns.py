"""Cells to checked columns of numbers: a whole column at once, and cell by cell only to name the one that is wrong."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.workload.table import Chunk, Sheet

MAX_TOKENS = 2**31 - 1  # a length beyond this is a byte count or a slip: no model takes as much
MAX_SECONDS = 1e10  # beyond any Unix time in seconds; double precision is still microseconds here
MAX_INTEGER = 2**63 - 1
UNITS = {1.0: "seconds", 1e3: "milliseconds", 1e6: "microseconds", 1e9: "nanoseconds"}
_INTEGER = re.compile(r"\s*[+-]?\d{1,20}\s*", re.ASCII)
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", re.ASCII | re.IGNORECASE)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def token_column(sheet: Sheet, chunk: Chunk, column: str) -> Ints:
    """Lengths in tokens: integers from 1 to MAX_TOKENS."""
    return integer_column(sheet, chunk, column, 1, MAX_TOKENS)


def integer_column(sheet: Sheet, chunk: Chunk, column: str, least: int, most: int) -> Ints:
    """Raises TraceError at the first cell that is not an integer from `least` to `most`."""
    values = _all_whole(chunk.cells[column])
    if values is None or values.min() < least or values.max() > most:
        rule = f"an integer from {least:,} to {most:,}" if least > -most else "an integer of 64 bits"
        values = np.array(
            _each(sheet, chunk, column, lambda cell: integer_value(cell, least, most), rule), dtype=np.int64
        )
    return values


def second_column(sheet: Sheet, chunk: Chunk, column: str, unit_s: float = 1.0) -> Floats:
    """Times, in seconds when read in units of 1/`unit_s`; finite, from 0 to MAX_SECONDS."""
    cells = chunk.cells[column]
    if isinstance(cells, np.ndarray):
        return cells
    values = _all_numbers(cells)
    if values is None or not (values.min() >= 0 and values.max() / unit_s <= MAX_SECONDS):
        what = UNITS[unit_s]
        rule = f"a finite number of {what} from 0 to {MAX_SECONDS * unit_s:.0e}"
        values = np.array(_each(sheet, chunk, column, lambda cell: number_value(cell, MAX_SECONDS * unit_s), rule))
    return values / unit_s


def name_column(sheet: Sheet, chunk: Chunk, column: str) -> list[str]:
    """Names: text that is not empty, or integers."""
    cells = chunk.cells[column]
    if set(map(type, cells)) == {str} and all(names := list(map(str.strip, cells))) and _is_text("".join(names)):
        return names
    return _each(sheet, chunk, column, _name, "a name or an integer")


def optional_name_column(sheet: Sheet, chunk: Chunk, column: str) -> list[str]:
    """The same where a cell may also be empty."""
    return _each(
        sheet,
        chunk,
        column,
        lambda cell: "" if cell is None or cell == "" else _name(cell),
        "a name, an integer or empty",
    )


def _all_whole(cells: Sequence[Any]) -> Ints | None:
    """The cells as integers if all are plain integers of 64 bits, else None."""
    kinds = set(map(type, cells))
    if kinds == {str}:
        joined = "".join(cells)
        if not (joined.isascii() and joined.isdigit()):
            return None
    elif kinds != {int}:
        return None
    try:
        return np.array(list(map(int, cells)), dtype=np.int64)
    except (ValueError, OverflowError):  # an empty cell, or too many digits
        return None


def _all_numbers(cells: Sequence[Any]) -> Floats | None:
    """The cells as numbers if all are plain numbers, else None."""
    kinds = set(map(type, cells))
    if not (kinds == {str} or kinds <= {int, float}):
        return None
    if kinds == {str} and not _plain("".join(cells)):
        return None
    try:
        return np.array(list(map(float, cells)), dtype=np.float64)
    except (ValueError, OverflowError):
        return None


def _plain(text: str) -> bool:
    """Whether this text is ASCII without underscores: `float` also takes 1_0 and digits of other scripts."""
    return text.isascii() and "_" not in text


def _each(sheet: Sheet, chunk: Chunk, column: str, parse: Callable[[Any], Any], rule: str) -> list[Any]:
    values = []
    for place, cell in zip(chunk.places, chunk.cells[column], strict=True):
        value = parse(cell)
        if value is None:
            raise sheet.fault(
                place, f"{sheet.said(column)} must be {rule}, got {show(cell)}; correct the row or remove it."
            )
        values.append(value)
    return values


def show(cell: object) -> str:
    """A cell as it is quoted in a message, shortened when it is long."""
    if cell is None or cell == "":
        return "nothing"
    try:
        text = str(cell).encode(errors="backslashreplace").decode()
    except RecursionError:
        return "something nested deeply"
    return text if len(text) <= 40 else f"{text[:40]}..."


def _is_text(name: str) -> bool:
    """Whether it has no half of a surrogate pair, which JSON can spell and no file can hold."""
    try:
        return bool(name.encode())
    except UnicodeEncodeError:
        return False


def integer_value(cell: object, least: int, most: int) -> int | None:
    """A cell as an integer in that range, None where it is none."""
    if isinstance(cell, str) and _INTEGER.fullmatch(cell):
        cell = int(cell)
    return cell if type(cell) is int and least <= cell <= most else None


def number_value(cell: Any, most: float) -> float | None:
    """A cell as a number of at least 0, None where it is none."""
    if isinstance(cell, str) and _NUMBER.fullmatch(cell):
        cell = float(cell)
    plain = isinstance(cell, int | float) and not isinstance(cell, bool)
    return float(cell) if plain and 0 <= cell <= most else None


def _name(cell: object) -> str | None:
    if isinstance(cell, str):
        name = cell.strip()
        return name if _is_text(name) else None
    return str(cell) if type(cell) is int else None
