"""The leaps of a run: kept in blocks of few bytes, and read a part at a time."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from sim.engine.columns import DraftColumns, Floats, Ints
from sim.engine.decode_stretches import DecodeStretches, JoinedStretches, Reader
from sim.engine.leap_block import LEAP, LeapBlock
from sim.engine.leap_columns import Leaps, Piece
from sim.engine.narrow import NarrowRows
from sim.engine.pairwise import pairwise_sum
from sim.engine.step_records import StepRecords

CHUNK = np.dtype([("chunk_tokens", "i4"), ("chunk_computed_tokens", "i4")])
LEAPS_AT_ONCE = 1 << 16
SAME_IN_ALL_PASSES = (
    *("num_decodes", "num_chunk_tokens", "num_chunks", "num_sampled", "num_running", "num_waiting"),
    *DraftColumns._fields,
)
"""Columns that the passes of a leap have in common."""


class LeapRecords:
    """All leaps of a run, and the chunks of prompts in them (rows of CHUNK).

    `decode_stretches` says in which pass of a leap blocks were taken. Of several engines `passes_of_engines` are how many each did.
    """

    def __init__(
        self,
        blocks: Sequence[LeapBlock],
        chunks: NarrowRows,
        decode_stretches: DecodeStretches | JoinedStretches,
        passes_of_engines: Sequence[int] | None = None,
    ) -> None:
        self.blocks = blocks
        self.chunks = chunks
        self.decode_stretches = decode_stretches
        self._leap_ends = [0, *accumulate(block.num_leaps for block in blocks)]
        self._pass_ends = [0, *accumulate(block.num_steps for block in blocks)]
        self.passes_of_engines = passes_of_engines or [self.num_passes]
        self._busy_s: float | None = None
        self._num_ran_steps: int | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return LeapRecords, (self.blocks, self.chunks, self.decode_stretches, self.passes_of_engines)

    @classmethod
    def joined(cls, parts: "Sequence[LeapRecords]") -> "LeapRecords":
        """The leaps of several engines, engine by engine, with passes numbered consecutively; none is copied."""
        return cls(
            [block for part in parts for block in part.blocks],
            NarrowRows.joined([part.chunks for part in parts]),
            JoinedStretches([part.decode_stretches for part in parts], [part.num_passes for part in parts]),
            [num_passes for part in parts for num_passes in part.passes_of_engines],
        )

    def __len__(self) -> int:
        return self._leap_ends[-1]

    @property
    def num_passes(self) -> int:
        """Of all leaps."""
        return self._pass_ends[-1]

    # -- some of the leaps -----------------------------------------------------------------------------------------

    @property
    def whole(self) -> Leaps:
        """All leaps."""
        return self.part(0, len(self))

    def parts(self) -> Iterator[Leaps]:
        """All leaps, LEAPS_AT_ONCE at a time: their columns would take more memory than the records."""
        for first in range(0, len(self), LEAPS_AT_ONCE):
            yield self.part(first, first + LEAPS_AT_ONCE)

    def part(self, first: int, end: int) -> Leaps:
        """Leaps `first` to before `end`, as far as there are any."""
        pieces = []
        number, end = bisect_right(self._leap_ends, first) - 1, min(end, len(self))
        while number < len(self.blocks) and self._leap_ends[number] < end:
            begin = self._leap_ends[number]
            some = slice(max(0, first - begin), end - begin)
            pieces.append(Piece(self.blocks[number], some, self._pass_ends[number]))
            number += 1
        return Leaps(pieces)

    def at(self, rows: Ints) -> Leaps:
        """The leaps in these rows, which do not fall."""
        pieces = []
        cuts = np.searchsorted(rows, self._leap_ends).tolist()
        for number, block in enumerate(self.blocks):
            if some := rows[cuts[number] : cuts[number + 1]].tolist():
                inside = np.array(some, dtype=np.int64) - self._leap_ends[number]
                pieces.append(Piece(block, inside, self._pass_ends[number]))
        return Leaps(pieces)

    def note_drafts(self, drafts: DraftColumns) -> None:
        """What each step verified, of leaps of one step each."""
        for number, block in enumerate(self.blocks):
            some = slice(self._leap_ends[number], self._leap_ends[number + 1])
            block.drafts = DraftColumns(*(column[some] for column in drafts))

    def note_overlaps(self) -> None:
        """Batches of stages overlap, and end in order: note how long the one before each still ran."""
        before_s = -np.inf
        for block in self.blocks:
            starts_s, ends_s = block.times_s()
            block.overlap_s = np.maximum(np.concatenate(([before_s], ends_s[:-1])) - starts_s, 0.0)
            before_s = float(ends_s[-1])

    # -- figures of all --------------------------------------------------------------------------------------------

    @property
    def num_ran_steps(self) -> int:
        if self._num_ran_steps is None:
            self._num_ran_steps = sum(int(part.num_steps[part.ran].sum()) for part in self.parts())
        return self._num_ran_steps

    @property
    def busy_s(self) -> float:
        """Time in which a step was running."""
        if self._busy_s is None:
            self._busy_s = self.sum_of(lambda part: part.durations_s)
        return self._busy_s

    def sum_of(self, column: Callable[[Leaps], Floats]) -> float:
        """The sum over all leaps, as numpy has it of the whole column."""
        return pairwise_sum(lambda first, end: column(self.part(first, end)), len(self))

    @property
    def last_end_s(self) -> float:
        """The end of the last step; there must be one."""
        return float(self.part(len(self) - 1, len(self)).end_s[0])

    @property
    def fewest_free_blocks(self) -> int:
        """After any pass; within a leap blocks are only taken, but where windows give some back."""
        if self.decode_stretches.give_back:
            return min(int(free.min()) for free in self._free_blocks())
        return min(int(part.num_free_blocks.min()) for part in self.parts())

    def _free_blocks(self) -> Iterator[Ints]:
        """Blocks free after each pass, a part of the leaps at a time."""
        reader = Reader(self.decode_stretches.blocks_taken(self.num_passes))
        for part in self.parts():
            num_steps = part.num_steps
            last = np.cumsum(num_steps) - 1
            taken = reader.next(int(last[-1]) + 1)
            taken_since = np.cumsum(taken[::-1])[::-1] - taken
            yield np.asarray(np.repeat(part.num_free_blocks - taken_since[last], num_steps) + taken_since)

    # -- steps -----------------------------------------------------------------------------------------------------

    def step_ends_s(self, first: int, end: int) -> Floats:
        """The ends of the passes from `first` to before `end`, as far as there are any."""
        found = [block.step_ends_s()[inside] for block, inside in self._blocks_of_passes(first, end)]
        return np.concatenate(found) if found else np.zeros(0)

    def of_each_step(self, name: str, first: int, end: int) -> Ints:
        """What the passes of a leap have in common, for each of these."""
        found = [block.of_each_step(name)[inside] for block, inside in self._blocks_of_passes(first, end)]
        return np.concatenate(found) if found else np.zeros(0, dtype=LEAP[name])

    def num_back_of_each_step(self, first: int, end: int) -> Ints | None:
        """How many steps before each its continued decodes had their last token; None if it is one for all."""
        if not any(block.goes_back for block in self.blocks):
            return None
        found = [block.num_back_of_each_step()[inside] for block, inside in self._blocks_of_passes(first, end)]
        return np.concatenate(found)

    def _blocks_of_passes(self, first: int, end: int) -> Iterator[tuple[LeapBlock, slice]]:
        """The blocks that have these passes, and which of each block's own these are."""
        number, end = bisect_right(self._pass_ends, first) - 1, min(end, self.num_passes)
        while first < end:
            begin = self._pass_ends[number]
            yield self.blocks[number], slice(first - begin, end - begin)
            first, number = self._pass_ends[number + 1], number + 1

    def ends_of(self, passes: Ints) -> Floats:
        """The ends of some passes, in any order."""
        ends_s, order = np.zeros(len(passes)), np.argsort(passes)
        cuts = np.searchsorted(passes[order], self._pass_ends).tolist()
        for number, block in enumerate(self.blocks):
            if len(some := order[cuts[number] : cuts[number + 1]]):
                ends_s[some] = block.step_ends_s()[passes[some] - self._pass_ends[number]]
        return ends_s

    def steps(self) -> StepRecords:
        """Every step by itself."""
        leaps, chunks = self.whole, self.chunks.part(0, len(self.chunks))
        counts, end_s = leaps.num_steps, self.step_ends_s(0, self.num_passes)
        start_s = np.concatenate(([0.0], end_s[:-1])) if len(self) else leaps.start_s
        start_s[leaps.first_pass] = leaps.start_s
        ran = np.repeat(leaps.ran, counts)
        free = np.concatenate([np.zeros(0, dtype=np.int64), *self._free_blocks()])
        return StepRecords(
            start_s=start_s[ran],
            end_s=end_s[ran],
            decode_context_tokens=_decode_context_tokens(leaps)[ran],
            num_free_blocks=free[ran],
            num_preempted=self._preempted(np.repeat(leaps.num_preempted, counts), ran),
            chunk_tokens=chunks["chunk_tokens"],
            chunk_computed_tokens=chunks["chunk_computed_tokens"],
            **{name: np.repeat(getattr(leaps, name), counts)[ran] for name in SAME_IN_ALL_PASSES},
        )

    def _preempted(self, counts: Ints, ran: NDArray[np.bool_]) -> Ints:
        """Of the steps that ran, what their engine's passes have preempted."""
        ends = list(accumulate(self.passes_of_engines))
        own = [slice(first, end) for first, end in pairwise([0, *ends])]
        return np.concatenate([_with_the_next(counts[passes], ran[passes]) for passes in own])


def _decode_context_tokens(leaps: Leaps) -> Ints:
    """Sums of the decodes' contexts after each pass of all leaps: every one adds a token to each."""
    counts = leaps.num_steps
    numbers = np.arange(int(counts.sum())) - np.repeat(leaps.first_pass, counts)
    first = np.repeat(leaps.decode_context_tokens, counts)
    return np.asarray(first + numbers * np.repeat(leaps.num_decodes, counts))


def _with_the_next(counts: Ints, ran: NDArray[np.bool_]) -> Ints:
    """The counts of those that ran, in which each of the others is added to the next, or to the last of all."""
    kept = counts[ran]
    others = np.flatnonzero(counts * ~ran)
    if len(kept):
        np.add.at(kept, np.minimum(np.cumsum(ran)[others], len(kept) - 1), counts[others])
    return kept
