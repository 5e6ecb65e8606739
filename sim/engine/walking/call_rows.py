"""What is noted of calls that only decode as they are worked out one after the other, until it is put away."""

from struct import Struct, pack
from typing import Final

import numpy as np

from sim.engine.columns import Floats, Ints

pack_eight: Final = Struct("8d").pack


def ints(values: list[int]) -> Ints:
    """As a column, in a third of the time in which numpy reads a list."""
    return np.frombuffer(pack(f"{len(values)}q", *values), np.int64)


class Time:
    """A time, and the place of the next one."""

    __slots__ = ("following", "is_last", "time_s")
    following: "Time"

    def __init__(self) -> None:
        self.time_s = 0.0
        self.is_last = False


class Times:
    """Times one after the other: eight at once are packed.

    Until then they lie in a ring of objects, in which compiled code writes them as they are. In a list each would be a Python float, which takes
    half as many instructions again.
    """

    __slots__ = ("_first", "_latest", "_packed")

    def __init__(self) -> None:
        self._packed: list[bytes] = []
        ring = [Time() for _ in range(8)]
        for number, time in enumerate(ring):
            time.following = ring[(number + 1) % 8]
        self._first, self._latest = ring[0], ring[-1]
        self._latest.is_last = True

    def add(self, time_s: float) -> None:
        """One more."""
        latest = self._latest = self._latest.following
        latest.time_s = time_s
        if latest.is_last:
            self._packed.append(self._eight())

    def _eight(self) -> bytes:
        a = self._first
        b = a.following
        c = b.following
        d = c.following
        e = d.following
        f = e.following
        g = f.following
        h = g.following
        return pack_eight(a.time_s, b.time_s, c.time_s, d.time_s, e.time_s, f.time_s, g.time_s, h.time_s)

    def first(self, count: int) -> Floats:
        """The first so many, which are all."""
        return np.frombuffer(bytearray().join([*self._packed, self._eight()]))[:count]


class CallRows:
    """A row for each batch, `num_rows` so far: when it ends, and how long it runs where that `is_timed`. Rows that are kept elsewhere have a place.

    Of rows whose batches take blocks, `taken` is how many, less what windows give back, and `gaps` how far each is behind the one before: small
    numbers, of which Python makes no objects. The batch of a row begins as its
    slot's last one ends; that of one among `others` begins at the time in `others_s`.
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
