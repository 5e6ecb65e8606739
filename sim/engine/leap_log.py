"""The leaps of a replica: recorded as packed rows, of which the latest stay so and all before become blocks."""

from struct import Struct

import numpy as np

from sim.engine.leap_block import LEAP, LeapBlock
from sim.engine.narrow import ROWS_AT_ONCE

pack_leap = Struct("10iq4d").pack


class LeapLog:
    """The latest leaps as rows; all before as blocks, which take a third of the room."""

    def __init__(self) -> None:
        self._latest = bytearray()
        self._most_bytes = ROWS_AT_ONCE * LEAP.itemsize
        self._blocks: list[LeapBlock] = []

    def add(self, row: bytes) -> None:
        """Record a leap, as packed by `pack_leap`."""
        self._latest += row
        if len(self._latest) >= self._most_bytes:
            self._to_block()

    def blocks(self) -> list[LeapBlock]:
        """All leaps."""
        if self._latest:
            self._to_block()
        return self._blocks

    def _to_block(self) -> None:
        self._blocks.append(LeapBlock(np.frombuffer(self._latest, dtype=LEAP)))
        self._latest = bytearray()
