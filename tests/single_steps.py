"""Leaps of a single step each, from the times and facts of the steps."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sim.engine.columns import Floats
from sim.engine.decode_stretches import STRETCH, DecodeStretches
from sim.engine.leap_block import LEAP, LeapBlock
from sim.engine.leap_records import CHUNK, LeapRecords
from sim.engine.narrow import ROWS_AT_ONCE, NarrowRows


def single_steps(
    columns: Mapping[str, Sequence[Any]], end_s: Sequence[float], chunks: Sequence[tuple[int, int]]
) -> LeapRecords:
    """`columns` are those of LEAP that are known, `chunks` (tokens, tokens computed before), step after step."""
    rows = np.zeros(len(end_s), dtype=LEAP)
    for name, column in columns.items():
        rows[name] = column
    rows["num_steps"] = 1
    rows["linear_s"] = np.subtract(end_s, rows["start_s"])
    assert (rows["start_s"] + rows["linear_s"]).tolist() == list(end_s), "times whose differences are exact"
    return leap_records(rows, NarrowRows.of(np.array(list(chunks), dtype=CHUNK)))


def leap_records(rows: np.ndarray[Any, Any], chunks: NarrowRows) -> LeapRecords:
    """Rows of LEAP, of decodes that take no block."""
    blocks = [LeapBlock.of(rows[first : first + ROWS_AT_ONCE]) for first in range(0, len(rows), ROWS_AT_ONCE)]
    return LeapRecords(blocks, chunks, DecodeStretches(NarrowRows(STRETCH), block_size=16, blocks_at_once=1))


def note_overlaps(leaps: LeapRecords, overlap_s: Floats) -> None:
    """How long the step before each one still ran."""
    for number, block in enumerate(leaps.blocks):
        first = number * ROWS_AT_ONCE
        block.overlap_s = overlap_s[first : first + block.num_leaps]
