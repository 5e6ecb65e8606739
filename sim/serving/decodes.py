"""All decoding requests as a few counters.

Every decode advances by one token a pass, so none is touched while it does. Invariants, for the decodes of pass `s`:
there are `count`; the sum of their contexts after it is `count * s - epoch_sum`; those that cross into a new block in it
are `crossings[s % block_size]`. No decode samples its last token before pass `next_end`.
"""

import sys
from heapq import heappop, heappush

from sim.serving.request import Request


class Decodes:
    """The decoding requests, counted by what the next passes need to know of them."""

    __slots__ = ("_block_size", "_ends", "_ends_order", "count", "crossings", "epoch_sum", "next_end")

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._ends: dict[int, list[Request]] = {}
        self._ends_order: list[int] = []
        self.count = 0
        self.epoch_sum = 0
        self.crossings = [0] * block_size
        self.next_end = sys.maxsize

    def enter(self, request: Request) -> None:
        """From the next pass on the request decodes; its `epoch` and `last_pass` are set."""
        epoch, last_pass = request.epoch, request.last_pass
        self.count += 1
        self.epoch_sum += epoch
        self.crossings[(epoch + 1) % self._block_size] += 1
        if last_pass in self._ends:
            self._ends[last_pass].append(request)
        else:
            self._ends[last_pass] = [request]
            heappush(self._ends_order, last_pass)
            self.next_end = self._ends_order[0]

    def leave(self, request: Request) -> None:
        """The request no longer decodes, before its end."""
        self._uncount(request)
        self._ends[request.last_pass].remove(request)

    def _uncount(self, request: Request) -> None:
        epoch = request.epoch
        self.count -= 1
        self.epoch_sum -= epoch
        self.crossings[(epoch + 1) % self._block_size] -= 1

    def pop_next_end(self) -> list[Request]:
        """Take out the requests that sample their last token in pass `next_end`; none where all have left before it."""
        order = self._ends_order
        ending = self._ends.pop(heappop(order))
        self.next_end = order[0] if order else sys.maxsize
        for request in ending:
            self._uncount(request)
        return ending

    def context_sum(self, step: int) -> int:
        """Sum of the decodes' contexts after pass `step`."""
        return self.count * step - self.epoch_sum

    def blocks_crossed(self, first: int, num_passes: int) -> int:
        """Blocks that all decodes together grow into over consecutive passes."""
        size, crossings = self._block_size, self.crossings
        begin, blocks = first % size, 0
        if num_passes == 1:
            return crossings[begin]
        if num_passes >= size:
            full_turns, num_passes = divmod(num_passes, size)
            blocks = full_turns * self.count
        end = begin + num_passes
        if end > size:
            blocks += sum(crossings[: end - size])
        return blocks + sum(crossings[begin:end])

    def passes_within(self, first: int, limit: int, num_blocks: int) -> int:
        """How many consecutive passes, at most `limit`, grow into no more than `num_blocks` blocks."""
        if self.count * (limit // self._block_size + 1) <= num_blocks:
            return limit  # as most often
        for done in range(limit):
            num_blocks -= self.crossings[(first + done) % self._block_size]
            if num_blocks < 0:
                return done
        return limit
