"""Passes that an engine foresees."""

from typing import Final

from sim.engine.leaps import Leap
from sim.engine.unlimited import UNLIMITED


class Plan:
    """So many passes that are certain unless a request arrives or is aborted.

    At `end_s` the last batch that is collected during them comes back; no request finishes before.
    """

    __slots__ = ("end_s", "num_passes")

    def __init__(self, num_passes: int, end_s: float) -> None:
        self.num_passes = num_passes
        self.end_s = end_s


class LeapPlan(Plan):
    """The first passes of a leap, each of which computes `num_chunk_tokens` of a prompt as well."""

    __slots__ = ("leap", "num_chunk_tokens")

    def __init__(self, leap: Leap, num_passes: int, num_chunk_tokens: int, end_s: float) -> None:
        super().__init__(num_passes, end_s)
        self.leap = leap
        self.num_chunk_tokens = num_chunk_tokens


DecodesAhead = tuple[int, int, int]
"""So many passes that run so many decodes, or none, and nothing else; the sum of their contexts after the first of them.

A plain tuple, which compiled code hands over without making an object.
"""
IDLE: Final[DecodesAhead] = (UNLIMITED, 0, 0)
"""Nothing happens in any pass."""
UNCERTAIN: Final[DecodesAhead] = (0, 0, 0)
"""The next pass may do something else."""
