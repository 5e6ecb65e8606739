"""Keys for the contents of prompts that come one after the other: a content has the same key as long as anybody may find it.

The counterpart of content.py, which knows all prompts beforehand and gives keys to what two of them have in common; here every whole
block of a prompt gets one. What no replica caches and no request asks for is forgotten, so that as much is kept as caches hold.
"""

from collections.abc import Iterable
from math import isnan

from sim.engine.keyed_blocks import KeyedBlocks
from sim.engine.request import Request
from sim.engine.spans import Span

FIRST_PRIVATE_KEY = 1 << 60
"""Engines number from here on what they name themselves, when they preempt a request."""
MOST_BLOCKS = 1 << 24
"""A prompt has fewer."""
Way = tuple[int, int]
"""A chain and how many of its blocks lie on the way: what comes next goes on from there."""
ROOT: Way = (-1, 0)
Piece = tuple[int, int, int]
"""So many tokens of a content, from one on."""
Run = tuple[object, int, int]
"""Consecutive blocks: a content, the first of its tokens that is in them, and how many there are; or the pieces of a single block, 0 and 1."""


class Chain:
    """Blocks that follow each other in the prompt that had them first; `way` leads there. Another prompt that has some of the first ones goes on
    elsewhere, from a chain of its own.
    """

    def __init__(self, number: int, way: Way, runs: tuple[Run, ...]) -> None:
        self.number = number
        self.way = way
        self.runs = runs

    def num_in_common(self, runs: list[Run]) -> int:
        """How many of its blocks a prompt has that consists of these runs from there on."""
        found = 0
        for own, other in zip(self.runs, runs, strict=False):
            if own[0] != other[0] or own[1] != other[1]:
                break
            found += min(own[2], other[2])
            if own[2] != other[2]:
                break
        return found


class GrowingKeys:
    """The tree of all prompts that can be found, in blocks of `block_size` tokens, for `num_groups` KV groups."""

    def __init__(self, block_size: int, num_groups: int) -> None:
        self._block_size = block_size
        self._no_passed = [0] * num_groups
        self._chains: dict[int, Chain] = {}
        self._from: dict[tuple[Way, object, int], Chain] = {}
        self._num_chains = 0
        self._unbegun: list[Request] = []

    def __len__(self) -> int:
        return len(self._chains)

    def give(self, request: Request, segments: Iterable[tuple[int, int]]) -> None:
        """Lets a request that has not begun share the whole blocks of its prompt, which consists of these."""
        spans = self._spans(runs_of(segments, self._block_size))
        if spans:
            request.keyed = KeyedBlocks(spans, self._no_passed)
            request.num_shared_blocks = spans[-1].end
            self._unbegun.append(request)

    def _spans(self, runs: list[Run]) -> list[Span]:
        spans: list[Span] = []
        way, block = ROOT, 0
        while runs:
            chain = self._from.get((way, runs[0][0], runs[0][1])) or self._begin(way, tuple(runs))
            count = chain.num_in_common(runs)
            spans.append(Span(block, chain.number * MOST_BLOCKS, count))
            way, block, runs = (chain.number, count), block + count, without(runs, count, self._block_size)
        return spans

    def _begin(self, way: Way, runs: tuple[Run, ...]) -> Chain:
        chain = Chain(self._num_chains, way, runs)
        self._num_chains += 1
        self._chains[chain.number] = self._from[way, runs[0][0], runs[0][1]] = chain
        return chain

    def forget_all_but(self, keys: Iterable[int]) -> None:
        """Keep what these keys stand for, what requests look for that have not begun, wherever they wait, and what leads to either."""
        self._unbegun = [request for request in self._unbegun if isnan(request.first_scheduled_s)]
        kept: dict[int, Chain] = {}
        for number in [key // MOST_BLOCKS for key in [*keys, *keys_of(self._unbegun)] if key < FIRST_PRIVATE_KEY]:
            while number >= 0 and number not in kept:
                kept[number] = self._chains[number]
                number = kept[number].way[0]  # noqa: PLW2901 - up the tree
        self._chains = kept
        self._from = {(chain.way, chain.runs[0][0], chain.runs[0][1]): chain for chain in kept.values()}


def runs_of(segments: Iterable[tuple[int, int]], block_size: int) -> list[Run]:
    """The whole blocks of a prompt that consists of these contents."""
    runs: list[Run] = []
    pieces: tuple[Piece, ...] = ()
    missing = block_size
    for content, length in segments:
        offset = 0
        if pieces:
            offset = min(missing, length)
            pieces = (*pieces, (content, 0, offset))
            missing -= offset
            if missing:
                continue
            runs.append((pieces, 0, 1))
            pieces, missing = (), block_size
        count, rest = divmod(length - offset, block_size)
        if count:
            runs.append((content, offset, count))
        if rest:
            pieces, missing = ((content, length - rest, rest),), block_size - rest
    return runs


def without(runs: list[Run], count: int, block_size: int) -> list[Run]:
    """The runs behind their first `count` blocks."""
    for number, (content, offset, length) in enumerate(runs):
        if count < length:
            return [(content, offset + count * block_size, length - count), *runs[number + 1 :]]
        count -= length
    return []


def keys_of(requests: Iterable[Request]) -> list[int]:
    """Those under which requests look for their blocks."""
    return [span.key for request in requests if request.keyed for span in request.keyed.spans]
