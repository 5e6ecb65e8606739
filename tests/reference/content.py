"""Which tokens a block holds, as a key: equal keys mean equal tokens in the block and in everything before it."""

from collections.abc import Sequence

from sim.workload.trace import Segment


class BlockKeys:
    """The keys of one request's full blocks, chained over its prefix as vLLM chains hashes; made as far as asked.

    `interned` belongs to the run and is shared by its requests: it gives equal chains the same small integer.
    """

    def __init__(self, segments: Sequence[Segment], block_size: int, interned: dict[tuple[object, ...], int]) -> None:
        self._segments = segments
        self._block_size = block_size
        self._interned = interned
        self._keys: list[int] = []
        self._segment = 0
        self._offset = 0

    def upto(self, num_blocks: int) -> Sequence[int]:
        """Keys of at least the first `num_blocks` blocks."""
        while len(self._keys) < num_blocks:
            parent = self._keys[-1] if self._keys else -1
            chained = (parent, *self._next_block())
            self._keys.append(self._interned.setdefault(chained, len(self._interned)))
        return self._keys

    def _next_block(self) -> list[tuple[int, int, int]]:
        """The pieces `(content id, first token, tokens)` of the block after the last keyed one."""
        pieces = []
        missing = self._block_size
        while missing:
            content_id, length = self._segments[self._segment]
            taken = min(missing, length - self._offset)
            if taken:
                pieces.append((content_id, self._offset, taken))
            missing -= taken
            self._offset += taken
            if self._offset == length:
                self._segment, self._offset = self._segment + 1, 0
        return pieces
