"""A DataFrame as a trace: its columns are those of any format that is read from files."""

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from sim.errors import TraceError
from sim.workload.table import CHUNK_ROWS, Chunk, Sheet

if TYPE_CHECKING:
    import pandas as pd

NAME = "DataFrame"


def is_frame(trace: object) -> "TypeGuard[pd.DataFrame]":
    """Whether it is a pandas DataFrame, without importing pandas for those who have none."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(trace, pandas.DataFrame)


def frame_sheet(frame: "pd.DataFrame", limit: int | None) -> Sheet:
    """The first rows of a DataFrame; places are counted from 1. Raises TraceError for two columns of one name."""
    columns = tuple(map(str, frame.columns))
    if twice := [column for column in columns if columns.count(column) > 1]:
        raise TraceError(f"{NAME}: the column `{twice[0]}` is there twice; drop one.")
    return Sheet(NAME, columns, lambda most: _chunks(frame.iloc[:most], columns), "row", limit)


def _chunks(frame: "pd.DataFrame", columns: tuple[str, ...]) -> Iterator[Chunk]:
    for start in range(0, len(frame), CHUNK_ROWS):
        rows = frame.iloc[start : start + CHUNK_ROWS]
        cells: dict[str, Sequence[Any]] = {
            column: list(map(_plain, rows.iloc[:, at].tolist())) for at, column in enumerate(columns)
        }
        yield Chunk(range(start + 1, start + 1 + len(rows)), cells)


def _plain(cell: Any) -> Any:
    """What columns of mixed types hold as numpy's scalars and arrays, as Python's."""
    return cell.tolist() if isinstance(cell, np.generic | np.ndarray) else cell
