"""All decoding requests as a few counters.

Every decode advances by one token a pass, so that no request needs an update. Invariants, for the decodes of pass `s`:
- `count` is their number, and `count * s - epoch_sum` the sum of their contexts in tokens after the pass.
- `block_boundaries[s % block_size]` of them begin a new block in the pass.
- `ends` lists them by the pass in which they sample their last token.
- `common` counts the blocks that several of them read, where a GPU is spared some of that.
"""

from collections.abc import Sequence

from sim.engine.common_blocks import CommonBlocks
from sim.engine.request import Request
from sim.engine.step_calendar import StepCalendar, occurrences


class Decodes:
    """The counters of all decoding requests. Not counted are starved ones in the pass in which they starve."""

    __slots__ = ("_block_size", "block_boundaries", "common", "count", "ends", "epoch_sum")

    def __init__(self, block_size: int, common: CommonBlocks | None = None) -> None:
        self._block_size = block_size
        self.common = common
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
        if self.common is not None:
            self._begin_reading(request, self.common)

    def leave(self, request: Request) -> None:
        """Stop counting a request that has not ended: it starves, is preempted or aborted."""
        self._uncount(request)
        self.ends.remove(request, request.last_pass)

    def _uncount(self, request: Request) -> None:
        epoch = request.epoch
        self.count -= 1
        self.epoch_sum -= epoch
        self.block_boundaries[(epoch + 1) % self._block_size] -= 1
        if self.common is not None:
            self._end_reading(request, self.common)

    def context_sum_without(self, step: int, leaving: Sequence[Request]) -> int:
        """The same once these have left."""
        count, epoch_sum, common = self.count, self.epoch_sum, self.common
        for request in leaving:
            count -= 1
            epoch_sum -= request.epoch
        if common is None:
            return count * step - epoch_sum
        for request in leaving:
            self._end_reading(request, common)
        num_spared = common.num_spared(count)
        for request in leaving:
            self._begin_reading(request, common)
        return count * step - epoch_sum - num_spared

    def without_any(self, leaving: Sequence[Request]) -> "Decodes":
        """The counters of nobody, once all have left, who are among these."""
        if self.common is not None:
            for request in leaving:
                self._end_reading(request, self.common)
        return Decodes(self._block_size, self.common)

    @staticmethod
    def _begin_reading(request: Request, common: CommonBlocks) -> None:
        if request.keyed is not None:
            request.keyed.held[common.group].begin_reading(common)

    @staticmethod
    def _end_reading(request: Request, common: CommonBlocks) -> None:
        if request.keyed is not None:
            request.keyed.held[common.group].end_reading()

    def pop_next_end(self) -> list[Request]:
        """Stop counting the requests that end in pass `ends.next_pass`, and return them; none if all have left before."""
        ending = self.ends.pop_next()
        for request in ending:
            self._uncount(request)
        return ending

    def context_sum(self, step: int) -> int:
        """Sum of the decodes' contexts after pass `step`, in tokens, as far as they are read from memory."""
        context_sum = self.count * step - self.epoch_sum
        return context_sum if self.common is None else context_sum - self.common.num_spared(self.count)

    def context_sum_beside(self, step: int, others: Sequence[Request]) -> int:
        """The same where others decode as well in this pass, whose contexts do not count."""
        common = self.common
        if common is None:
            return self.context_sum(step)
        for request in others:
            self._begin_reading(request, common)
        num_spared = common.num_spared(self.count + len(others))
        for request in others:
            self._end_reading(request, common)
        return self.count * step - self.epoch_sum - num_spared

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
