"""Keys for the contents of KV blocks: blocks of two requests have equal keys if all tokens up to their end are equal.

Only contents that a second request of the trace can ask for get a key; a trace that shares nothing costs nothing.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from sim.engine.columns import Ints
from sim.engine.conversations import SharedBlocks, key_ranges
from sim.engine.spans import Spans
from sim.workload.adapters import told_apart
from sim.workload.conversations import Path, num_tokens, session_numbers, with_answers
from sim.workload.trace import Trace

flattened = chain.from_iterable


def private_prompt_id(index: int) -> int:
    """Content id of the prompt of request number `index`, if the trace says nothing about it."""
    return -2 * index - 1


def output_id(index: int) -> int:
    """Content id of the output of request number `index`."""
    return -2 * index - 2


def shared_block_keys(trace: Trace, answers: Ints, block_size: int, num_ahead: int = 0) -> tuple[Spans, int]:
    """For each request the keys of its leading blocks that other requests have too; and the number of different keys.

    `answers` has the tokens that each request generates, 0 for rejected ones. With `num_ahead` the key of a block also covers so many
    tokens behind it, and blocks without them have none.
    """
    trace = told_apart(trace)
    sessions = None if trace.session_id is None else session_numbers(trace.session_id)
    if trace.segments is None:
        assert sessions is not None, "a trace that says what its prompts are made of"
        shared = SharedBlocks(sessions, trace.prompt_tokens, answers, block_size, num_ahead)
        first_keys, num_keys, depths, num_in_all = key_ranges(shared)
        return Spans(first_keys, num_keys, depths), num_in_all
    paths = trace.segments if sessions is None else with_answers(trace.segments, sessions, answers.tolist())
    content_ids, lengths, depths = _in_common(*_with_ends(paths, trace.prompt_tokens + answers))
    return _keys_of_segments(content_ids, _num_blocks(lengths, depths, block_size, num_ahead), lengths, depths)


def _with_ends(paths: Sequence[Path], totals: Ints) -> tuple[Ints, Ints, Ints]:
    """The segments of prompts and of the parts of answers that are known; `totals` has the prompt and answer tokens of each row."""
    content_ids, lengths, depths = _in_columns(paths)
    if content_ids.min(initial=0) >= 0:
        return content_ids, lengths, depths
    rows = enumerate(zip(paths, totals.tolist(), strict=True))  # answers may be found in other prompts
    return _in_columns([(*path, (output_id(row), total - num_tokens(path))) for row, (path, total) in rows])


def _in_columns(paths: Sequence[Path]) -> tuple[Ints, Ints, Ints]:
    """The contents and lengths of all segments, path by path, and how many each path has."""
    depths = np.fromiter(map(len, paths), dtype=np.int64)
    segments = np.fromiter(flattened(flattened(paths)), dtype=np.int64)
    content_ids, lengths = segments.reshape(-1, 2).T
    return content_ids, lengths, depths


def _in_common(content_ids: Ints, lengths: Ints, depths: Ints) -> tuple[Ints, Ints, Ints]:
    """The same without what comes from the first content on that is found nowhere else: nobody shares a block with any of it."""
    numbers = _numbered(content_ids)
    num_alone = np.cumsum(np.bincount(numbers)[numbers] == 1)
    rows = np.repeat(np.arange(len(depths)), depths)
    before = np.concatenate(([0], num_alone))[np.cumsum(depths) - depths]
    kept = num_alone == before[rows]
    return content_ids[kept], lengths[kept], np.bincount(rows[kept], minlength=len(depths))


def _num_blocks(lengths: Ints, depths: Ints, block_size: int, num_ahead: int) -> Ints:
    """How many blocks of its path end within each segment, with the tokens behind them that their keys cover."""
    ends = np.cumsum(lengths)
    before = np.repeat(np.concatenate(([0], ends))[np.cumsum(depths) - depths], depths)
    told = [np.maximum(0, places - before - num_ahead) // block_size for places in (ends - lengths, ends)]
    num_blocks: Ints = told[1] - told[0]
    return num_blocks


def _keys_of_segments(content_ids: Ints, num_blocks: Ints, lengths: Ints, depths: Ints) -> tuple[Spans, int]:
    """A range of keys for the blocks that end within each segment.

    Segments stand path by path; `depths` has the number of segments of each path.
    """
    nodes = _nodes(content_ids, lengths, depths)
    num_visits = np.bincount(nodes)
    num_shared = np.where(num_visits[nodes] > 1, num_blocks, 0)
    sizes = np.zeros(len(num_visits), dtype=np.int64)
    np.maximum.at(sizes, nodes, num_shared)
    visited = np.argsort(
        np.unique(nodes, return_index=True)[1]
    )  # so that ways which nobody leaves have consecutive keys
    first_keys = np.zeros_like(sizes)
    first_keys[visited] = np.cumsum(sizes[visited]) - sizes[visited]
    return Spans(first_keys[nodes], num_shared, depths), int(sizes.sum())


def _nodes(content_ids: Ints, lengths: Ints, depths: Ints) -> Ints:
    """The number of each segment's node in the tree of all prompts, which is built level by level.

    Two segments share a node if they have the same content and all segments before them have the same contents and lengths.
    """
    contents, num_lengths = _numbered(content_ids), int(lengths.max(initial=0)) + 1
    firsts = np.cumsum(depths) - depths
    ways = np.zeros(len(depths), dtype=np.int64)
    nodes = np.zeros_like(content_ids)
    num_nodes = 0
    for level in range(depths.max(initial=0)):
        reaching = np.flatnonzero(depths > level)
        here = firsts[reaching] + level
        places = _numbered(ways[reaching] * len(contents) + contents[here])
        ways[reaching] = _numbered(places * num_lengths + lengths[here])
        nodes[here] = num_nodes + places
        num_nodes += int(places.max()) + 1
    return nodes


def _numbered(values: Ints) -> Ints:
    """Numbers from 0 on, equal for equal values."""
    return np.unique(values, return_inverse=True)[1]
