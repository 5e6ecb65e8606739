"""What the leading blocks of prompts contain, as spans of consecutive keys: blocks of two requests have equal keys if all
tokens up to their end are equal. So whoever has a key has that of the block before it too, which is the same for everybody.
"""

from collections.abc import Iterable
from itertools import islice, pairwise

import numpy as np

from sim.engine.columns import Ints


class Span:
    """Blocks from number `block` to before `end` of a prompt; the first contains `key`, the next `key` + 1, and so on.

    Prompts that contain `key` all have a span that begins with it.
    """

    def __init__(self, block: int, key: int, count: int) -> None:
        self.block = block
        self.key = key
        self.end = block + count


class Spans:
    """The spans of many prompts, in columns: `keys` and `counts` have an entry a span, `depths` the number of each prompt's.

    A span that goes on from the one before it is told as one with it.
    """

    def __init__(self, keys: Ints, counts: Ints, depths: Ints) -> None:
        rows = np.repeat(np.arange(len(depths)), depths)
        rows, keys, counts = (column[counts > 0] for column in (rows, keys, counts))
        goes_on = (keys[1:] == keys[:-1] + counts[:-1]) & (rows[1:] == rows[:-1])
        firsts = np.flatnonzero(np.concatenate(([True], ~goes_on))[: len(keys)])
        self._keys = keys[firsts]
        self._counts = np.add.reduceat(counts, firsts) if len(firsts) else counts
        self._bounds = np.searchsorted(rows[firsts], np.arange(len(depths) + 1))

    def __getitem__(self, rows: slice) -> list[list[Span]]:
        bounds = self._bounds[rows.start : rows.stop + 1].tolist()
        keys, counts = (column[bounds[0] : bounds[-1]].tolist() for column in (self._keys, self._counts))
        pairs = zip(keys, counts, strict=True)
        return [_spans(islice(pairs, end - first)) for first, end in pairwise(bounds)]


def _spans(pairs: Iterable[tuple[int, int]]) -> list[Span]:
    """Those of one prompt, by key and number of blocks."""
    spans, block = [], 0
    for key, count in pairs:
        spans.append(Span(block, key, count))
        block += count
    return spans
