"""Where a data-parallel rank with pipeline stages is in its loop."""

from typing import Final

from sim.engine.request import Request
from sim.engine.walking.staged_rank import StagedRank

BACK: Final = 0
CALL: Final = 1
DUMMY: Final = 2
LOOK: Final = 3


class Loop:
    """Where a rank is in its loop: what it does `next`, at `at_s`, which is `inf` as long as it waits for another rank; `since_s` it does.

    It calls its scheduler for a `step` of the wave, or waits: for its oldest batch to come BACK, for a DUMMY batch, or for all others to LOOK.
    Of the call it says whether a batch `was_launched`, and whether there were requests behind it.
    """

    __slots__ = ("at_s", "core", "had_requests", "inbox", "next", "number", "since_s", "step", "was_launched")

    def __init__(self, core: StagedRank, number: int, start_s: float) -> None:
        self.core = core
        self.number = number
        self.inbox: list[Request] = []
        self.next = CALL
        self.at_s = self.since_s = start_s
        self.step = 0
        self.was_launched = False
        self.had_requests = False
