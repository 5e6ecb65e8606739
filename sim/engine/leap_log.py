"""The leaps of a replica: recorded as packed rows, and moved into columns, which take half the room, LEAPS_AT_ONCE at a time."""

from array import array
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.engine.records import Floats

COUNTS = (
    "num_steps",
    "num_decodes",
    "num_chunk_tokens",
    "num_chunks",
    "num_sampled",
    "num_running",
    "num_waiting",
    "num_free_blocks",
    "num_preempted",
    "num_continued",
)
LEAP_TIMES = ("start_s", "linear_s", "square_s", "cube_s")
LEAP = np.dtype(
    [(name, "i4") for name in COUNTS] + [("decode_context_tokens", "i8")] + [(name, "f8") for name in LEAP_TIMES]
)
KEPT = (*COUNTS, "decode_context_tokens", "start_s")
LEAPS_AT_ONCE = 4_096
pack_leap = Struct("10iq4d").pack


class LeapLog:
    """The latest leaps as rows; all before as columns, together with the end of each step in seconds."""

    def __init__(self) -> None:
        self._rows = bytearray()
        self._num_rows = 0
        self._columns = {name: array(LEAP[name].char) for name in KEPT}
        self._step_ends_s = array("d")

    def add(self, row: bytes) -> None:
        """Record a leap, as packed by `pack_leap`."""
        self._rows += row
        self._num_rows += 1
        if self._num_rows >= LEAPS_AT_ONCE:
            self._to_columns()

    def columns(self) -> dict[str, NDArray[Any]]:
        """All leaps: an array for each name in KEPT with an entry a leap, and `step_end_s` with an entry a step."""
        self._to_columns()
        found = self._columns | {"step_end_s": self._step_ends_s}
        return {
            name: np.frombuffer(column, column.typecode) if column else np.array(column)
            for name, column in found.items()
        }

    def _to_columns(self) -> None:
        rows = np.frombuffer(self._rows, dtype=LEAP)
        for name, column in self._columns.items():
            column.frombytes(rows[name].tobytes())
        self._step_ends_s.frombytes(step_ends_s(rows).tobytes())
        self._rows, self._num_rows = bytearray(), 0


def step_ends_s(leaps: NDArray[Any]) -> Floats:
    """The end of each step of these leaps in seconds, by the formula of `leaps.end_s`."""
    counts = leaps["num_steps"]
    lasts = np.cumsum(counts, dtype=np.int64)
    numbers = np.arange(1.0, counts.sum() + 1.0) - np.repeat(lasts - counts, counts)
    start_s, linear_s, square_s, cube_s = (np.repeat(leaps[name], counts) for name in LEAP_TIMES)
    return np.asarray(start_s + numbers * (linear_s + numbers * (square_s + numbers * cube_s)))
