"""Which block of which request stands where among blocks that windows have passed together.

Such blocks lie in the free list as a number. Only when a request is preempted, and so may ask for what its windows have
passed, is it worked out which of those that are still there were its own.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Passing(NamedTuple):
    """A window of a decode that passes a block once in `block_size` passes; `begin` is the pass from which it counts."""

    serial: int
    group: int
    begin: int


class PassedBlock(NamedTuple):
    """A block by its place among those passed together, its KV group and its number in the request."""

    place: int
    group: int
    number: int


class PassedBlocks:
    """Blocks that were given back one after the other, numbered by place from 0 on."""

    def of(self, serial: int, first: int, end: int) -> list[PassedBlock]:
        """Those of one request, by number of admission, that stand in places `first` and following, before `end`."""
        raise NotImplementedError


class PassedByOne(PassedBlocks):
    """Blocks of one request's KV group before block `end`, the last first."""

    def __init__(self, serial: int, group: int, end: int) -> None:
        self._serial = serial
        self._group = group
        self._end = end

    def of(self, serial: int, first: int, end: int) -> list[PassedBlock]:
        if serial != self._serial:
            return []
        return [PassedBlock(place, self._group, self._end - 1 - place) for place in range(first, end)]


class PassedByMany(PassedBlocks):
    """Blocks of decodes in consecutive passes from `step` on, in each pass in order of admission.

    `passings[r]` are the windows that pass a block in passes that are `r` modulo the block size.
    """

    def __init__(self, step: int, passings: Sequence[tuple[Passing, ...]]) -> None:
        self._step = step
        self._passings = passings

    def of(self, serial: int, first: int, end: int) -> list[PassedBlock]:
        found = []
        size, step, place = len(self._passings), self._step, 0
        while place < end:
            for owner, group, begin in self._passings[step % size]:
                if owner == serial and first <= place < end:
                    found.append(PassedBlock(place, group, (step - begin) // size - 1))
                place += 1
            step += 1
        return found
