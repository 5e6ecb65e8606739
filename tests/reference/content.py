"""Which tokens a block holds, as a key: equal keys mean equal tokens in the block and in everything before it."""

from collections.abc import Sequence

from sim.workload.trace import Segment

Piece = tuple[int, int, int]
"""`(content id, first token, tokens)`."""


def pieces(segments: Sequence[Segment]) -> list[Piece]:
    return [(content_id, 0, tokens) for content_id, tokens in segments]


def cut(whole: Sequence[Piece], first: int, end: int) -> list[Piece]:
    """The tokens of these pieces from number `first` to before `end`, or to their own end."""
    found, place = [], 0
    for content_id, offset, tokens in whole:
        low, high = max(first - place, 0), min(end - place, tokens)
        if low < high:
            found.append((content_id, offset + low, high - low))
        place += tokens
    return found


def tokens_of(whole: Sequence[Piece]) -> list[tuple[int, int]]:
    """Each token by itself."""
    return [(content_id, number) for content_id, first, count in whole for number in range(first, first + count)]


def num_tokens(whole: Sequence[Piece]) -> int:
    return sum(tokens for _, _, tokens in whole)


class BlockKeys:
    """The keys of one request's full blocks, chained over its prefix as vLLM chains hashes; made as far as asked.

    The key of a block covers `num_ahead` tokens behind it too, and vLLM makes none before these are known. `interned` belongs to the run and is shared by its requests: it gives equal chains the same small integer. Contents
    computed with an adapter are its own.
    """

    def __init__(
        self,
        whole: Sequence[Piece],
        block_size: int,
        interned: dict[tuple[object, ...], int],
        *,
        lora: int = 0,
        num_ahead: int = 0,
    ) -> None:
        self._lora = lora
        self._pieces = whole
        self._block_size = block_size
        self._interned = interned
        self._keys: list[int] = []
        self._num_ahead = num_ahead
        self._piece = 0
        self._offset = 0

    def of(self, whole: Sequence[Piece]) -> "BlockKeys":
        """Those of a request like this one with other tokens."""
        return BlockKeys(whole, self._block_size, self._interned, lora=self._lora, num_ahead=self._num_ahead)

    def upto(self, num_blocks: int) -> Sequence[int]:
        """Keys of at least the first `num_blocks` blocks."""
        while len(self._keys) < num_blocks:
            parent = self._keys[-1] if self._keys else -1 - self._lora
            end = (len(self._keys) + 1) * self._block_size
            ahead = tokens_of(cut(self._pieces, end, end + self._num_ahead))
            chained = (parent, *self._next_block(), ("ahead", *ahead))
            self._keys.append(self._interned.setdefault(chained, len(self._interned)))
        return self._keys

    def _next_block(self) -> list[tuple[int, int]]:
        """The tokens of the block after the last keyed one."""
        found = []
        missing = self._block_size
        while missing:
            content_id, first, length = self._pieces[self._piece]
            taken = min(missing, length - self._offset)
            if taken:
                found.append((content_id, first + self._offset, taken))
            missing -= taken
            self._offset += taken
            if self._offset == length:
                self._piece, self._offset = self._piece + 1, 0
        return tokens_of(found)
