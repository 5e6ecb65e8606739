"""In which passes decodes took blocks, told from the stretches of passes in which each request decoded."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from sim.engine.columns import Ints
from sim.engine.narrow import NarrowRows, Rows

STRETCH = np.dtype([("first", "i8"), ("num_further", "i4"), ("context_tokens", "i4")])
STRETCHES_AT_ONCE = 4_096


@dataclass(frozen=True)
class DecodeStretches:
    """Unbroken runs of passes in which one request decoded, in order of their ends.

    `rows` are of STRETCH: the first pass, how many follow it, and tokens of context after it. `passing_delays` has an
    entry for each KV group with a window: a decode gives back a block of it in passes that lie whole multiples of the block
    size behind its epoch plus this delay. In `rows` passes count from the first of the run, elsewhere from
    `first_pass`.
    """

    rows: NarrowRows
    block_size: int
    blocks_at_once: int  # one for each KV group
    passing_delays: tuple[int, ...] = ()
    first_pass: int = 0

    def __reduce__(self) -> tuple[object, ...]:
        return DecodeStretches, (self.rows, self.block_size, self.blocks_at_once, self.passing_delays, self.first_pass)

    @property
    def give_back(self) -> bool:
        """Whether decodes give blocks back while they run."""
        return bool(self.passing_delays)

    def blocks_taken(self, num_passes: int) -> Iterator[Ints]:
        """Blocks that decodes took in each pass, less those they gave back, for some passes after the other.

        Those passes are done that lie before the first of all stretches to come.
        """
        done, taken = 0, np.zeros(0, dtype=np.int32)
        for part, first_to_come in zip(self._parts(), self._firsts_to_come(num_passes), strict=True):
            end = min(num_passes, int((part["first"] + part["num_further"]).max()) + 1)
            taken = np.append(taken, np.zeros(max(0, end - done - len(taken)), dtype=np.int32))
            self._count(taken, part, done)
            num_done = max(0, first_to_come - done)
            yield taken[:num_done]
            done, taken = done + len(taken[:num_done]), taken[num_done:].copy()
        yield np.zeros(num_passes - done, dtype=np.int32)

    def _parts(self) -> Iterator[Rows]:
        for part in self.rows.parts(STRETCHES_AT_ONCE):
            part["first"] -= self.first_pass
            yield part

    def _firsts_to_come(self, num_passes: int) -> list[int]:
        """For each part the first pass of all stretches in later ones."""
        firsts = [int(part["first"].min()) for part in self._parts()]
        return [*accumulate(reversed(firsts), min, initial=num_passes)][-2::-1]

    def _count(self, taken: Ints, stretches: Rows, begin: int) -> None:
        """Add the blocks of some stretches; `taken` begins with pass `begin`."""
        first = stretches["first"]
        last, epoch = first + stretches["num_further"], first - stretches["context_tokens"]
        self._count_phase(taken, first - begin, last - begin, epoch + 1 - begin, self.blocks_at_once)
        for delay in self.passing_delays:
            passed = epoch + delay
            earliest = np.maximum(first, passed + self.block_size)
            self._count_phase(taken, earliest - begin, last - begin, passed - begin, -1)

    def _count_phase(self, taken: Ints, first: Ints, last: Ints, phase: Ints, num_blocks: int) -> None:
        """Count blocks where each stretch takes them, which is once in `block_size` passes."""
        size = self.block_size
        first = first + (phase - first) % size
        counts = np.maximum(0, (last - first) // size + 1)
        starts = np.repeat(first - size * (np.cumsum(counts) - counts), counts)
        passes = starts + size * np.arange(len(starts))
        passes = passes[passes < len(taken)]
        if len(passes):
            found = np.bincount(passes)
            taken[: len(found)] += found.astype(np.int32) * num_blocks


class JoinedStretches(NamedTuple):
    """Of several replicas one after the other, each with so many passes."""

    parts: "Sequence[DecodeStretches | JoinedStretches]"
    num_passes: Sequence[int]

    @property
    def give_back(self) -> bool:
        return any(part.give_back for part in self.parts)

    def blocks_taken(self, num_passes: int) -> Iterator[Ints]:
        """In each pass of all, some after the other; `num_passes` is their number."""
        assert num_passes == sum(self.num_passes), "stretches of other passes"
        for part, count in zip(self.parts, self.num_passes, strict=True):
            yield from part.blocks_taken(count)


class Reader:
    """Reads on in columns that come in pieces."""

    def __init__(self, pieces: Iterator[Ints]) -> None:
        self._pieces = pieces
        self._ahead: list[Ints] = [np.zeros(0, dtype=np.int32)]
        self._num_ahead = 0

    def next(self, count: int) -> Ints:
        """The next so many values, fewer at the end."""
        while self._num_ahead < count and (piece := next(self._pieces, None)) is not None:
            self._ahead.append(piece)
            self._num_ahead += len(piece)
        values = np.concatenate(self._ahead)
        self._ahead, self._num_ahead = [values[count:]], max(0, len(values) - count)
        return values[:count]
