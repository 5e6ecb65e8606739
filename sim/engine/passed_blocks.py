"""Which of the free blocks that attention windows have given back belonged to which request.

In the free list such blocks are only counted. When a request is preempted, it may later ask for blocks that its windows
have passed; only then is it worked out which of the blocks that are still free were its own.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Passing(NamedTuple):
    """A window of a decode that passes a block in every `block_size`-th pass after pass `begin`.

    `serial` is the request's number of admission, `group` the KV group of the window.
    """

    serial: int
    group: int
    begin: int


class PassedBlock(NamedTuple):
    """A block: its place among those given back together, its KV group, and its number within the request."""

    place: int
    group: int
    number: int


class PassedBlocks:
    """Blocks that were given back together, one after the other; the first has place 0."""

    def of(self, serial: int, first: int, end: int) -> list[PassedBlock]:
        """The blocks of the request with that number of admission in places from `first` to before `end`."""
        raise NotImplementedError


class PassedByOne(PassedBlocks):
    """Blocks of one KV group of one request, given back from block `end - 1` downwards."""

    def __init__(self, serial: int, group: int, end: int) -> None:
        self._serial = serial
        self._group = group
        self._end = end

    def of(self, serial: int, first: int, end: int) -> list[PassedBlock]:
        if serial != self._serial:
            return []
        return [PassedBlock(place, self._group, self._end - 1 - place) for place in range(first, end)]


class PassedByMany(PassedBlocks):
    """Blocks of many decodes, given back in consecutive passes from `step` on, within a pass in order of admission.

    `passings[r]` are the windows that pass a block in passes whose number is `r` modulo the block size.
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
