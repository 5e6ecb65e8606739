"""What is noted of calls that only decode as they are worked out one after the other, until it is put away."""

from struct import Struct, pack
from typing import Final

import numpy as np

from sim.engine.columns import Floats, Ints

CHUNK: Final = 64
"""Times that are packed at once: Python keeps room for a hundred floats that are no longer needed, and makes each that is alive besides anew."""
pack_chunk: Final = Struct(f"{CHUNK}d").pack


def ints(values: list[int]) -> Ints:
    """As a column, in a third of the time in which numpy reads a list."""
    return np.frombuffer(pack(f"{len(values)}q", *values), np.int64)


class Times:
    """Times one after the other."""

    __slots__ = ("_latest", "_num_latest", "_packed")

    def __init__(self) -> None:
        self._packed: list[bytes] = []
        self._latest = [0.0] * CHUNK
        self._num_latest = 0

    def add(self, time_s: float) -> None:
        """One more."""
        number = self._num_latest
        self._latest[number] = time_s
        number += 1
        if number == CHUNK:
            self._packed.append(pack_chunk(*self._latest))
            number = 0
        self._num_latest = number

    def all(self) -> Floats:
        """Those so far."""
        latest = self._latest[: self._num_latest]
        return np.frombuffer(bytearray().join([*self._packed, pack(f"{len(latest)}d", *latest)]))


class CallRows:
    """A row for each batch, `num_rows` so far: when it ends, and how long it runs where that `is_timed`. Rows that are kept elsewhere have a place.

    Of rows whose batches take blocks, `taken` is how many, less what windows give back, and `gaps` how far each is behind the one before: small
    numbers, of which Python makes no objects. The batch of a row begins as its slot's last one ends; that of one among `others` begins at the time
    in `others_s`.
    """

    def __init__(self) -> None:
        self.is_timed = False
        self.forget()

    def forget(self) -> None:
        """All is put away."""
        self.num_rows = 0
        self.ends_s = Times()
        self.durations_s = Times()
        self._last_taker = 0
        self.gaps: list[int] = []
        self.taken: list[int] = []
        self.others: list[int] = []
        self.others_s: list[float] = []

    def add(self, end_s: float, duration_s: float) -> None:
        """One more."""
        self.num_rows += 1
        self.ends_s.add(end_s)
        if self.is_timed:
            self.durations_s.add(duration_s)

    def next_takes(self, num_blocks: int) -> None:
        """The next row's batch takes so many."""
        self.gaps.append(self.num_rows - self._last_taker)
        self.taken.append(num_blocks)
        self._last_taker = self.num_rows

    def next_begins(self, start_s: float) -> None:
        """The next row's batch begins later than its slot's last one ends."""
        self.others.append(self.num_rows)
        self.others_s.append(start_s)

    def blocks(self) -> Ints:
        """How many each row's batch takes."""
        found = np.zeros(self.num_rows, np.int64)
        found[np.cumsum(ints(self.gaps))] = ints(self.taken)
        return found
