"""Columns of some leaps, made when they are asked for."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.engine.columns import Floats, Ints
from sim.engine.leap_block import LEAP, LeapBlock
from sim.engine.leaps import Leap


class Piece(NamedTuple):
    """Some leaps of a block, in order; the number of the block's first pass."""

    block: LeapBlock
    some: slice | Ints
    first_pass: int


class Leaps:
    """Some leaps of a run.

    A leap is consecutive passes that ran the same decodes, or one pass with anything else in it. Columns are as in
    StepRecords; contexts are those after the first pass, blocks those free after the last.
    """

    __slots__ = ("_pieces",)

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = pieces

    def __len__(self) -> int:
        return len(self.num_steps)

    @property
    def num_steps(self) -> Ints:
        """Passes of each leap, also those that only preempted and so ran no step."""
        return self._integers("num_steps")

    @property
    def num_decodes(self) -> Ints:
        return self._integers("num_decodes")

    @property
    def decode_context_tokens(self) -> Ints:
        return self._integers("decode_context_tokens")

    @property
    def num_chunk_tokens(self) -> Ints:
        return self._integers("num_chunk_tokens")

    @property
    def num_chunks(self) -> Ints:
        return self._integers("num_chunks")

    @property
    def num_sampled(self) -> Ints:
        return self._integers("num_sampled")

    @property
    def num_running(self) -> Ints:
        return self._integers("num_running")

    @property
    def num_waiting(self) -> Ints:
        return self._integers("num_waiting")

    @property
    def num_free_blocks(self) -> Ints:
        return self._integers("num_free_blocks")

    @property
    def num_preempted(self) -> Ints:
        return self._integers("num_preempted")

    @property
    def num_tokens(self) -> Ints:
        """Tokens that each pass computes."""
        num_tokens = self.num_decodes + self.num_chunk_tokens
        return num_tokens + self.num_drafts if self._has_drafts else np.asarray(num_tokens)

    @property
    def num_drafts(self) -> Ints:
        """Drafts that the decodes of each pass verify."""
        return self._of_drafts(0)

    @property
    def num_accepted(self) -> Ints:
        """How many of them are accepted."""
        return self._of_drafts(1)

    @property
    def _has_drafts(self) -> bool:
        return any(piece.block.drafts is not None for piece in self._pieces)

    def _of_drafts(self, column: int) -> Ints:
        if not self._has_drafts:
            return np.broadcast_to(np.zeros(1, dtype=np.int8), len(self))
        drafts = [(piece.block.drafts, piece) for piece in self._pieces]
        found = [np.zeros(piece.block.num_leaps, np.int32) if of is None else of[column] for of, piece in drafts]
        return np.concatenate([counts[piece.some] for counts, (_, piece) in zip(found, drafts, strict=True)])

    @property
    def ran(self) -> NDArray[np.bool_]:
        """Which leaps ran tokens."""
        return self.num_tokens > 0

    @property
    def start_s(self) -> Floats:
        return self.times_s[0]

    @property
    def end_s(self) -> Floats:
        """The end of the last step of each leap."""
        return self.times_s[1]

    @property
    def durations_s(self) -> Floats:
        """Of each leap, without what overlaps with the one before."""
        starts_s, ends_s = self.times_s
        return np.asarray(ends_s - starts_s - self._overlap_s)

    @property
    def _overlap_s(self) -> Floats:
        overlaps = [(piece.block.overlap_s, piece) for piece in self._pieces]
        if all(overlap_s is None for overlap_s, _ in overlaps):
            return np.zeros(1)
        none = [np.zeros(piece.block.num_leaps) if overlap_s is None else overlap_s for overlap_s, piece in overlaps]
        return np.concatenate([overlap_s[piece.some] for overlap_s, (_, piece) in zip(none, overlaps, strict=True)])

    @property
    def times_s(self) -> tuple[Floats, Floats]:
        """The start and the end of each leap."""
        starts_s, ends_s = [np.zeros(0)], [np.zeros(0)]
        for piece in self._pieces:
            times_s = piece.block.times_s()
            starts_s.append(times_s[0][piece.some])
            ends_s.append(times_s[1][piece.some])
        return np.concatenate(starts_s), np.concatenate(ends_s)

    def curves(self) -> list[Leap]:
        """When the steps of each leap end."""
        return [leap for piece in self._pieces for leap in piece.block.leaps(piece.some)]

    @property
    def first_pass(self) -> Ints:
        """The number of each leap's first pass."""
        return self.last_pass - self.num_steps + 1

    @property
    def last_pass(self) -> Ints:
        """The number of each leap's last pass."""
        found = [
            piece.first_pass - 1 + np.cumsum(piece.block.integers("num_steps", slice(None)), dtype=np.int64)[piece.some]
            for piece in self._pieces
        ]
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)

    def _integers(self, name: str) -> Ints:
        found = [piece.block.integers(name, piece.some) for piece in self._pieces]
        return np.concatenate(found) if found else np.zeros(0, dtype=LEAP[name])
