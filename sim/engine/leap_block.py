"""Consecutive leaps of a replica: their facts in as few bytes as hold them, and the end of each step when it is asked for.

The ends of steps would take most of the memory. They follow from a leap's start and coefficients, to the bit.
"""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.engine.columns import DraftColumns, Floats, Ints
from sim.engine.leaps import Leap
from sim.engine.narrow import Narrow, Rows, Shared

COUNTS = (
    "num_steps",
    "num_decodes",
    "num_chunk_tokens",
    "num_chunks",
    "num_sampled",
    "num_running",
    "num_waiting",
    "num_free_blocks",
    "num_preempted",
    "num_continued",
)
FEW = 1 / 256
"""Of the leaps of a block, how many may start later than the one before ends for their starts alone to be kept."""
ALL = slice(None)
Column = Narrow | Shared
INTEGERS = (*COUNTS, "decode_context_tokens")
LEAP = np.dtype(
    [(name, "i4") for name in COUNTS]
    + [("decode_context_tokens", "i8")]
    + [(name, "f8") for name in ("start_s", "linear_s", "square_s", "cube_s")]
)


class LeapBlock:
    """Leaps in columns. Of a leap of a single step the coefficients are kept as their sum.

    Most leaps start as the one before ends, which is then all that is known of their start.
    """

    __slots__ = (
        "_begin_s", "_begins", "_cube_s", "_integers", "_is_long", "_linear_s", "_num_back", "_square_s", "drafts", "num_leaps",
        "num_steps", "overlap_s",
    )  # fmt: skip

    def __init__(
        self,
        integers: dict[str, Column],
        num_steps: int,
        is_long: NDArray[np.uint8],
        coefficients: tuple[Floats, Floats, Floats],
        begins: tuple[Ints, Floats],
    ) -> None:
        self._integers = integers
        self.num_steps = num_steps
        self._is_long = is_long
        self._linear_s, self._square_s, self._cube_s = coefficients
        self._begins, self._begin_s = begins
        self.num_leaps = len(self._linear_s)
        self.overlap_s: Floats | None = None  # how long the leap before each one still ran, where batches overlap
        self.drafts: DraftColumns | None = None  # of engines that speculate
        self._num_back: Narrow | None = None  # one step

    @staticmethod
    def of(rows: Rows) -> "LeapBlock":
        """Rows of LEAP, at least one."""
        integers: dict[str, Column] = {name: Narrow(np.ascontiguousarray(rows[name])) for name in INTEGERS}
        num_steps = rows["num_steps"]
        is_long = num_steps > 1
        square_s, cube_s = rows["square_s"][is_long], rows["cube_s"][is_long]
        only_step_s = rows["linear_s"] + (rows["square_s"] + rows["cube_s"])
        linear_s = np.where(is_long, rows["linear_s"], only_step_s)
        durations_s = linear_s.copy()
        durations_s[is_long] = _curve_s(num_steps[is_long], linear_s[is_long], square_s, cube_s)
        begins = _begins(rows["start_s"].copy(), durations_s)
        return LeapBlock(integers, int(num_steps.sum()), np.packbits(is_long), (linear_s, square_s, cube_s), begins)

    @staticmethod
    def of_steps(integers: dict[str, Column], starts_s: Floats, durations_s: Floats) -> "LeapBlock":
        """Leaps of a single step each."""
        count, none_s = len(starts_s), np.zeros(0)
        is_long = np.zeros(-(-count // 8), np.uint8)
        return LeapBlock(integers, count, is_long, (durations_s, none_s, none_s), _begins(starts_s, durations_s))

    def __reduce__(self) -> tuple[object, ...]:
        coefficients, begins = (self._linear_s, self._square_s, self._cube_s), (self._begins, self._begin_s)
        made_of = (self._integers, self.num_steps, self._is_long, coefficients, begins)
        return _block_again, (made_of, self.overlap_s, self.drafts, self._num_back)

    def integers(self, name: str, some: slice | Ints) -> Ints:
        """A column of INTEGERS in some rows."""
        return self._integers[name].read(some, LEAP[name])

    def of_each_step(self, name: str) -> Ints:
        """A column that the steps of a leap have in common."""
        return np.repeat(self.integers(name, ALL), self.integers("num_steps", ALL))

    def note_num_back(self, num_back: Ints) -> None:
        """How many steps before each its continued decodes had their last token."""
        self._num_back = Narrow(num_back) if (num_back > 1).any() else None

    @property
    def goes_back(self) -> bool:
        """Whether any had it more than a step before."""
        return self._num_back is not None

    def num_back_of_each_step(self) -> Ints:
        """How many steps before each its continued decodes had their last token."""
        if self._num_back is None:
            return np.broadcast_to(np.ones(1, dtype=np.int64), self.num_steps)
        return self._num_back.read(ALL, np.int64)

    def times_s(self) -> tuple[Floats, Floats]:
        """The start of each leap, and the end of its last step."""
        durations_s = self._durations_s()
        starts_s = self._begin_s
        if len(self._begins):
            added_s = np.concatenate(([0.0], durations_s[:-1]))
            added_s[self._begins] = self._begin_s
            starts_s = np.empty(self.num_leaps)
            for begin, end in pairwise([*self._begins.tolist(), self.num_leaps]):
                np.cumsum(added_s[begin:end], out=starts_s[begin:end])  # one after the other, as the engine adds them
        return starts_s, starts_s + durations_s

    def _durations_s(self) -> Floats:
        """Of each leap, before it is added to its start."""
        durations_s, rows = self._linear_s.copy(), self._long_rows()
        durations_s[rows] = _curve_s(self.integers("num_steps", rows), durations_s[rows], self._square_s, self._cube_s)
        return durations_s

    def _long_rows(self) -> Ints:
        return np.flatnonzero(np.unpackbits(self._is_long, count=self.num_leaps))

    def step_ends_s(self) -> Floats:
        """The end of each step."""
        starts_s, ends_s = self.times_s()
        if self.num_steps == self.num_leaps:
            return ends_s
        counts = self.integers("num_steps", ALL)
        numbers = np.arange(1.0, self.num_steps + 1.0)
        numbers -= np.repeat(np.cumsum(counts, dtype=np.int64) - counts, counts)
        step_ends_s = _curve_s(numbers, *(np.repeat(column, counts) for column in self._coefficients()))
        step_ends_s += np.repeat(starts_s, counts)
        return step_ends_s

    def leaps(self, some: slice | Ints) -> list[Leap]:
        """Some leaps as they were."""
        columns = (self.integers("num_steps", ALL), self.times_s()[0], *self._coefficients())
        return [Leap(*leap) for leap in zip(*(column[some].tolist() for column in columns), strict=True)]

    def _coefficients(self) -> tuple[Floats, Floats, Floats]:
        rows = self._long_rows()
        square_s, cube_s = np.zeros(self.num_leaps), np.zeros(self.num_leaps)
        square_s[rows], cube_s[rows] = self._square_s, self._cube_s
        return self._linear_s, square_s, cube_s


def _block_again(
    made_of: tuple[Any, ...], overlap_s: Floats | None, drafts: DraftColumns | None, num_back: Narrow | None
) -> LeapBlock:
    block = LeapBlock(*made_of)
    block.overlap_s, block.drafts = overlap_s, drafts
    block._num_back = num_back  # noqa: SLF001 - its own constructor
    return block


def _begins(starts_s: Floats, durations_s: Floats) -> tuple[Ints, Floats]:
    """The leaps that start later than the one before ends, and when they do; all starts, and no leaps, if these are more than FEW."""
    follows = starts_s[1:] == (starts_s + durations_s)[:-1]
    if len(starts_s) - np.count_nonzero(follows) > len(starts_s) * FEW:
        return np.arange(0), starts_s
    begins = np.concatenate(([0], 1 + np.flatnonzero(~follows)))
    return begins, starts_s[begins]


def _curve_s(numbers: Ints | Floats, linear_s: Floats, square_s: Floats, cube_s: Floats) -> Floats:
    """How long after their starts the steps of leaps end that have these numbers, counted from 1: see `leaps.end_s`."""
    found_s = cube_s * numbers
    found_s += square_s
    found_s *= numbers
    found_s += linear_s
    found_s *= numbers
    return found_s
