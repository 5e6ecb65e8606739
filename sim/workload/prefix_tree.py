"""The prompts of a trace as one tree: a stem for each content behind each beginning, along which prompts go for so many tokens."""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from sim.workload.columns import Ints
from sim.workload.conversations import Path


class Walks(NamedTuple):
    """One entry a segment, row by row: its row, its stem, and which tokens of the prompt it has. Tokens are equal, and all before
    them too, where stem and place are.
    """

    row: Ints
    stem: Ints
    begin: Ints
    end: Ints


def walks(paths: Sequence[Path]) -> Walks:
    """Where each goes in the tree of them all, worked out level by level."""
    counts = np.fromiter(map(len, paths), dtype=np.int64, count=len(paths))
    pairs = np.fromiter(chain.from_iterable(chain.from_iterable(paths)), dtype=np.int64).reshape(-1, 2)
    tokens = pairs[:, 1]
    row, opening = np.repeat(np.arange(len(paths)), counts), np.repeat(np.cumsum(counts) - counts, counts)
    end = np.cumsum(tokens)
    end -= (end - tokens)[opening]
    return Walks(row, _stems(row, np.arange(len(row)) - opening, pairs), end - tokens, end)


def _stems(row: Ints, depth: Ints, pairs: Ints) -> Ints:
    """Segments part where their contents differ, and behind segments of different lengths."""
    contents, content = np.unique(pairs[:, 0], return_inverse=True)
    longest = int(pairs[:, 1].max(initial=0)) + 1
    node = np.zeros(
        int(row.max(initial=0)) + 1, dtype=np.int64
    )  # of each row at the level before; numbered anew at each
    stem, num_stems = np.empty_like(row), 0
    for level in np.split(np.argsort(depth, kind="stable"), np.cumsum(np.bincount(depth))[:-1]):
        stems, which = np.unique(node[row[level]] * len(contents) + content[level], return_inverse=True)
        stem[level] = num_stems + which
        num_stems += len(stems)
        node[row[level]] = np.unique(which * longest + pairs[level, 1], return_inverse=True)[1]
    return stem
