"""Keys of the blocks that turns of a conversation share, for traces that name sessions but not the contents of prompts."""

from array import array
from itertools import pairwise

import numpy as np

from sim.engine.columns import Ints
from sim.workload.conversations import repeated_tokens


class SharedBlocks:
    """The turns of all sessions, session by session, each in order of its turns; `rows` are their rows in the trace.

    `kept` has the number of leading blocks that a turn shares with the turn before it, `passed_on` with the turn after it, with
    `num_ahead` tokens behind each of them.
    """

    def __init__(self, sessions: Ints, prompts: Ints, answers: Ints, block_size: int, num_ahead: int) -> None:
        self.rows = np.argsort(sessions, kind="stable")
        repeated = repeated_tokens(sessions, prompts, answers)
        self.kept: list[int] = (np.maximum(0, repeated[self.rows] - num_ahead) // block_size).tolist()
        self.passed_on = [*self.kept[1:], 0]


def key_ranges(shared: SharedBlocks) -> tuple[Ints, Ints, Ints, int]:
    """Keys of shared blocks as ranges: `(first key of each range, its length, ranges of each row, number of all keys)`.

    A conversation that only grows has one range. Where a prompt is shorter than the conversation before it, later turns
    keep the ranges up to that point and get new keys behind it.
    """
    first_keys, num_keys, depths = array("q"), array("q"), array("q")
    # Each entry is (block, key): blocks from this one on, up to that of the next entry, have consecutive keys from this one.
    ways: list[tuple[int, int]] = []
    num_given = 0
    for kept, passed_on in zip(shared.kept, shared.passed_on, strict=True):
        while ways and ways[-1][0] >= kept:
            ways.pop()
        if passed_on > kept:
            if not ways or ways[-1][1] - ways[-1][0] != num_given - kept:
                ways.append((kept, num_given))
            num_given += passed_on - kept
        for (block, key), (end, _) in pairwise((*ways, (max(kept, passed_on), 0))):
            first_keys.append(key)
            num_keys.append(end - block)
        depths.append(len(ways))
    return (*_by_row(shared.rows, first_keys, num_keys, depths), num_given)


def _by_row(
    rows: Ints, first_keys: "array[int]", num_keys: "array[int]", depths: "array[int]"
) -> tuple[Ints, Ints, Ints]:
    """The ranges in order of the trace's rows."""
    num_ranges = np.array(depths, dtype=np.int64)
    order = np.argsort(np.repeat(rows, num_ranges), kind="stable")
    by_row = np.zeros_like(num_ranges)
    by_row[rows] = num_ranges
    return np.array(first_keys, dtype=np.int64)[order], np.array(num_keys, dtype=np.int64)[order], by_row
