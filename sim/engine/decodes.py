"""All decoding requests as a few counters.

Every decode advances by one token a pass, so none is touched while it does. Invariants, for the decodes of pass `s`:
there are `count`; the sum of their contexts after it is `count * s - epoch_sum`; those that cross into a new block in it
are `block_boundaries[s % block_size]`. `ends` has them by the pass in which they sample their last token.
"""

from sim.engine.request import Request
from sim.engine.step_calendar import StepCalendar, occurrences


class Decodes:
    """The decoding requests, counted by what the next passes need to know of them."""

    __slots__ = ("_block_size", "block_boundaries", "count", "ends", "epoch_sum")

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.ends = StepCalendar()
        self.count = 0
        self.epoch_sum = 0
        self.block_boundaries = [0] * block_size

    def enter(self, request: Request) -> None:
        """From the next pass on the request decodes; its `epoch` and `last_pass` are set."""
        self.count += 1
        self.epoch_sum += request.epoch
        self.block_boundaries[(request.epoch + 1) % self._block_size] += 1
        self.ends.add(request, request.last_pass)

    def leave(self, request: Request) -> None:
        """The request no longer decodes, before its end."""
        self._uncount(request)
        self.ends.remove(request, request.last_pass)

    def _uncount(self, request: Request) -> None:
        epoch = request.epoch
        self.count -= 1
        self.epoch_sum -= epoch
        self.block_boundaries[(epoch + 1) % self._block_size] -= 1

    def pop_next_end(self) -> list[Request]:
        """Take out those that sample their last token in pass `ends.next_pass`; none where all have left before it."""
        ending = self.ends.pop_next()
        for request in ending:
            self._uncount(request)
        return ending

    def context_sum(self, step: int) -> int:
        """Sum of the decodes' contexts after pass `step`."""
        return self.count * step - self.epoch_sum

    def blocks_begun(self, first: int, num_passes: int) -> int:
        """Blocks that all decodes together grow into over consecutive passes."""
        return occurrences(self.block_boundaries, first, num_passes)

    def passes_within(self, first: int, limit: int, num_blocks: int) -> int:
        """How many consecutive passes, at most `limit`, grow into no more than `num_blocks` blocks."""
        if self.count * (limit // self._block_size + 1) <= num_blocks:
            return limit  # as most often
        for done in range(limit):
            num_blocks -= self.block_boundaries[(first + done) % self._block_size]
            if num_blocks < 0:
                return done
        return limit
