"""When replicas that come and go were there."""

from math import inf
from typing import NamedTuple


class Life(NamedTuple):
    """A replica from the decision to start it until its GPUs are given back; infinite where that did not happen in the run.

    `ready_s` are the times at which it became ready, more than one if it was lost in between.
    """

    number: int
    pool: int
    started_s: float
    ready_s: tuple[float, ...] = ()
    gone_s: float = inf
