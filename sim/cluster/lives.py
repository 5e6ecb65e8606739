"""When replicas that come and go were there."""

from math import inf
from typing import NamedTuple


class Life(NamedTuple):
    """A replica from the decision to start it until its GPUs are given back; infinite where that did not happen in the run.

    `ready_s` are the times at which it became ready, more than one if it was lost in between, at `lost_s`.
    """

    number: int
    pool: int
    started_s: float
    ready_s: tuple[float, ...] = ()
    lost_s: tuple[float, ...] = ()
    gone_s: float = inf

    def held_s(self, start_s: float, end_s: float) -> float:
        """How long it held its GPUs between two times, its starts and losses included."""
        return max(0.0, min(self.gone_s, end_s) - max(self.started_s, start_s))
