"""The blocks that attention windows leave behind, counted for all decodes together.

A window of `w` tokens has passed a block when all of it lies before the last `w` processed tokens; the block is given back.
A decode in steady progress has processed `step - epoch - 1 - lag` tokens before pass `step`, where `lag` batches are in
flight. So each of its windows passes a block in every pass that is `begin` modulo the block size and comes after it:

    begin  =  epoch + lag + window
"""

import sys
from collections.abc import Sequence
from heapq import heappop, heappush

from sim.serving.request import Request


class Passings:
    """Decodes in steady progress, by the passes in which their windows pass blocks.

    Invariants, after pass `s`: `due[r]` blocks are passed in each later pass that is `r` modulo the block size, until
    `next_begin`; requests of which a window begins to pass blocks only after a later pass wait for it in `_beginning`.
    """

    def __init__(self, windows: Sequence[int | None], block_size: int, lag: int) -> None:
        self._delays = [None if window is None else window + lag for window in windows]
        self._block_size = block_size
        self._beginning: dict[int, list[Request]] = {}
        self._order: list[int] = []
        self.due = [0] * block_size
        self.next_begin = sys.maxsize

    def enter(self, request: Request, step: int) -> None:
        """Count a decode from the pass after `step` on."""
        for delay in self._delays:
            if delay is None:
                continue
            begin = request.epoch + delay
            if begin <= step:
                self.due[begin % self._block_size] += 1
            elif begin in self._beginning:
                self._beginning[begin].append(request)
            else:
                self._beginning[begin] = [request]
                heappush(self._order, begin)
                self.next_begin = self._order[0]

    def leave(self, request: Request, step: int) -> None:
        """Count it no more, nor in pass `step` + 1; its `passed_blocks` are set to what pass `step` has left."""
        passed = []
        for delay in self._delays:
            if delay is None:
                passed.append(0)
                continue
            begin = request.epoch + delay
            passed.append(max(0, step - begin) // self._block_size)
            if begin in self._beginning:
                self._beginning[begin].remove(request)
            else:
                self.due[begin % self._block_size] -= 1
        request.passed_blocks = passed

    def advance(self, step: int) -> None:
        """Pass `step` has been done: windows that begin with it pass blocks from now on."""
        while self.next_begin <= step:
            begin = heappop(self._order)
            self.due[begin % self._block_size] += len(self._beginning.pop(begin))
            self.next_begin = self._order[0] if self._order else sys.maxsize

    def blocks_passed(self, first: int, num_passes: int) -> int:
        """Blocks passed in consecutive passes, none after `next_begin`."""
        size = self._block_size
        turns, rest = divmod(num_passes, size)
        return turns * sum(self.due) + sum(self.due[step % size] for step in range(first, first + rest))
