"""Passes that an engine foresees."""

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


class DecodesAhead:
    """Passes that run so many decodes, or none, and nothing else; the sum of their contexts after the first of them."""

    __slots__ = ("context_tokens", "num_decodes", "num_passes")

    def __init__(self, num_passes: int, num_decodes: int, context_tokens: int) -> None:
        self.num_passes = num_passes
        self.num_decodes = num_decodes
        self.context_tokens = context_tokens


IDLE = DecodesAhead(UNLIMITED, 0, 0)
"""Nothing happens in any pass."""
