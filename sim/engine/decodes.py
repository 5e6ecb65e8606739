"""All decoding requests as a few counters.

Every decode advances by one token a pass, so that no request needs an update. Invariants, for the decodes of pass `s`:
- `count` is their number, and `count * s - epoch_sum` the sum of their contexts in tokens after the pass.
- `block_boundaries[s % block_size]` of them begin a new block in the pass.
- `ends` lists them by the pass in which they sample their last token.
- `_readers` knows what several of them read, where a GPU is spared some of that.
"""

from collections.abc import Sequence

from sim.engine.common_readers import NOBODY, CommonReaders
from sim.engine.keyed_blocks import KeyedBlocks
from sim.engine.request import Request
from sim.engine.step_calendar import StepCalendar, occurrences


class Decodes:
    """The counters of all decoding requests. Not counted are starved ones in the pass in which they starve."""

    __slots__ = ("_block_size", "_readers", "block_boundaries", "count", "ends", "epoch_sum")

    def __init__(self, block_size: int, readers: CommonReaders | None = None) -> None:
        self._block_size = block_size
        self._readers = readers
        self.ends = StepCalendar()
        self.count = 0
        self.epoch_sum = 0
        self.block_boundaries = [0] * block_size

    def enter(self, request: Request) -> None:
        """Count a request that decodes from the next pass on; its `epoch` and `last_pass` must be set."""
        self.count += 1
        self.epoch_sum += request.epoch
        self.block_boundaries[(request.epoch + 1) % self._block_size] += 1
        self.ends.add(request, request.last_pass)
        if self._readers is not None:
            self._readers.begin(request)

    def leave(self, request: Request) -> None:
        """Stop counting a request that has not ended: it starves, is preempted or aborted."""
        self._uncount(request)
        self.ends.remove(request, request.last_pass)

    def _uncount(self, request: Request) -> None:
        epoch = request.epoch
        self.count -= 1
        self.epoch_sum -= epoch
        self.block_boundaries[(epoch + 1) % self._block_size] -= 1
        if self._readers is not None:
            self._readers.end(request)

    def pop_next_end(self) -> list[Request]:
        """Stop counting the requests that end in pass `ends.next_pass`, and return them; none if all have left before."""
        ending = self.ends.pop_next()
        for request in ending:
            self._uncount(request)
        return ending

    def context_sum(self, step: int) -> int:
        """Sum of the decodes' contexts after pass `step`, in tokens, as far as they are read from memory."""
        return self.context_sum_beside(NOBODY, self.count, step)

    def context_sum_beside(self, others: list[KeyedBlocks], num_decodes: int, step: int) -> int:
        """The same where so many decode in all, of whom some are not counted here: their contexts are not in it, but what these hold is read as well."""
        context_sum = self.count * step - self.epoch_sum
        return context_sum if self._readers is None else context_sum - self._readers.num_spared(num_decodes, others)

    def context_sum_without(self, step: int, leaving: Sequence[Request]) -> int:
        """The same once these have left."""
        count, epoch_sum = self.count, self.epoch_sum
        for request in leaving:
            count -= 1
            epoch_sum -= request.epoch
        context_sum = count * step - epoch_sum
        if self._readers is None:
            return context_sum
        for request in leaving:
            self._readers.end(request)
        context_sum -= self._readers.num_spared(count, NOBODY)
        for request in leaving:
            self._readers.begin(request)
        return context_sum

    def without_any(self, leaving: Sequence[Request]) -> "Decodes":
        """The counters of nobody, once all have left, who are among these."""
        if self._readers is not None:
            for request in leaving:
                self._readers.end(request)
        return Decodes(self._block_size, self._readers)

    def blocks_begun(self, first: int, num_passes: int) -> int:
        """Blocks of one KV group that all decodes together begin in `num_passes` passes, the first of which is `first`."""
        size = self._block_size
        if num_passes < size:
            return occurrences(self.block_boundaries, first, num_passes)
        num_rounds = num_passes // size  # in each of which every decode begins one
        return num_rounds * self.count + occurrences(self.block_boundaries, first, num_passes - num_rounds * size)

    def passes_within(self, first: int, limit: int, num_blocks: int) -> int:
        """How many passes from `first` on, at most `limit`, begin no more than `num_blocks` blocks together."""
        if self.count * (limit // self._block_size + 1) <= num_blocks:
            return limit  # the usual case
        for done in range(limit):
            num_blocks -= self.block_boundaries[(first + done) % self._block_size]
            if num_blocks < 0:
                return done
        return limit
