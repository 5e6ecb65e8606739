"""Prefix ids of a trace: one id a block of prompt tokens, equal ids for equal prefixes up to and including that block."""

import json
from collections.abc import Hashable, Iterable, Sequence
from itertools import repeat
from typing import Any

from sim.workload.columns import MAX_INTEGER, show
from sim.workload.table import Chunk, Sheet
from sim.workload.trace import Segment

DEFAULT_HASH_BLOCK_SIZE = 16  # vLLM's own default block size


def segment_column(
    sheet: Sheet, chunk: Chunk, prompt_tokens: Iterable[int], block_sizes: Iterable[int]
) -> list[tuple[Segment, ...]]:
    """What each prompt is made of, from the cells of `hash_ids`; the last block may be partial."""
    cells = chunk.cells["hash_ids"]
    rows = zip(chunk.places, cells, prompt_tokens, block_sizes, strict=False)
    return [_segments(sheet, place, cell, tokens, size) for place, cell, tokens, size in rows]


def _segments(sheet: Sheet, place: int, cell: Any, tokens: int, block_size: int) -> tuple[Segment, ...]:
    ids = _ids(cell) if isinstance(cell, str) else cell
    if not isinstance(ids, list) or set(map(type, ids)) != {int} or not 0 <= min(ids) <= max(ids) <= MAX_INTEGER:
        raise sheet.fault(
            place,
            f"{sheet.said('hash_ids')} must be a list of integers of at least 0 and 64 bits, got {show(cell)}; give one id a block of the prompt.",
        )
    if len(ids) != -(-tokens // block_size):
        raise sheet.fault(
            place,
            f"{sheet.said('hash_ids')} must have {-(-tokens // block_size)} ids, one for each {block_size} of its {tokens} prompt tokens, "
            f"got {len(ids)}; check the block size.",
        )
    return blocks(ids, tokens, block_size)


def _ids(cell: str) -> Any:
    """Ids in one cell of a CSV: a JSON list, or numbers with spaces between."""
    try:
        return json.loads(cell) if cell.lstrip().startswith("[") else [int(item) for item in cell.split()]
    except (ValueError, RecursionError):
        return None


def blocks(ids: Sequence[int], tokens: int, block_size: int) -> tuple[Segment, ...]:
    """One segment a block of `block_size`, the last with what remains of `tokens`."""
    last = (ids[-1], tokens - (len(ids) - 1) * block_size)
    return (*zip(ids[:-1], repeat(block_size)), last)


class TokenPrefixes:
    """What prompts are made of whose tokens are known: equal ids for equal beginnings, block by block."""

    def __init__(self) -> None:
        self._ids: dict[tuple[int, Hashable], int] = {}

    def of(self, tokens: Sequence[int] | None, num_tokens: int) -> tuple[Segment, ...]:
        """A prompt whose tokens are not known is like no other."""
        if tokens is None:
            return ((self._id(-1, ("alone", len(self._ids))), num_tokens),)
        ids, before = [], -1
        for at in range(0, num_tokens, DEFAULT_HASH_BLOCK_SIZE):
            before = self._id(before, tuple(tokens[at : at + DEFAULT_HASH_BLOCK_SIZE]))
            ids.append(before)
        return blocks(ids, num_tokens, DEFAULT_HASH_BLOCK_SIZE)

    def _id(self, before: int, block: Hashable) -> int:
        return self._ids.setdefault((before, block), len(self._ids))
