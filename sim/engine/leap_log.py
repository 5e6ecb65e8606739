"""The leaps of a replica: recorded as packed rows, of which the latest stay so and all before become blocks."""

from struct import Struct
from typing import Final

from sim.engine.leap_block import LEAP, LeapBlock
from sim.engine.narrow import ROWS_AT_ONCE, PackedRows, Rows

pack_leap: Final = Struct("10iq4d").pack
pack_decodes: Final = Struct("2i8x4i4xiq4d").pack
"""The same without a prompt and whoever was preempted, whose zeros need not be handed over."""


class LeapLog(PackedRows):
    """Rows as packed by `pack_leap`; blocks take a third of their room."""

    def __init__(self) -> None:
        super().__init__(LEAP, ROWS_AT_ONCE)
        self.blocks_so_far: list[LeapBlock] = []

    @property
    def num_passes(self) -> int:
        """Of all leaps so far."""
        return sum(block.num_steps for block in self.blocks())

    def blocks(self) -> list[LeapBlock]:
        """All leaps."""
        self._flush()
        return self.blocks_so_far

    def _put_away(self, rows: Rows) -> None:
        self.blocks_so_far.append(LeapBlock.of(rows))
